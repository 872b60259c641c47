from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.errors import EngineError
from resources.packing import (
    BUCKET_RATIO,
    PADDED_LENGTH_MULTIPLE,
    SHORTEST_BUCKET,
    bucket,
    buckets,
    gather_ids,
    most_sequences,
    pack,
    plan,
)
from resources.records import GatherConvention, Limits

sequences = st.lists(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20).map(lambda ids: np.array(ids, dtype=np.int32)),
    min_size=1,
    max_size=12,
)
conventions = st.sampled_from(GatherConvention)
small_limits = st.builds(
    Limits, max_batch_size=st.integers(1, 6), max_num_tokens=st.integers(20, 60), max_input_len=st.just(20)
)
lengths_within = st.lists(st.integers(1, 20), max_size=80)
any_limits = st.builds(
    Limits, max_batch_size=st.integers(4, 3000), max_num_tokens=st.integers(5, 9000), max_input_len=st.integers(2, 9000)
)


@given(lengths_within, small_limits)
def test_every_sequence_is_in_one_batch_in_order_within_the_limits(lengths, limits):
    batches = list(plan(iter(lengths), limits))
    assert [i for batch in batches for i in batch] == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= limits.max_batch_size
        assert sum(lengths[i] for i in batch) <= limits.max_num_tokens


@given(lengths_within, small_limits)
def test_a_batch_ends_only_where_the_next_sequence_does_not_fit(lengths, limits):
    for batch in list(plan(lengths, limits))[:-1]:
        tokens = sum(lengths[i] for i in batch)
        longest = max(lengths[batch.start : batch.stop + 1])
        assert len(batch) >= most_sequences(longest, limits) or tokens + lengths[batch.stop] > limits.max_num_tokens


@pytest.mark.parametrize(
    ("max_num_tokens", "max_input_len", "expected"),
    [
        (16384, 512, (128, 512)),
        (16384, 1000, (128, 512, 1000)),
        (2048, 2048, (128, 512, 2048)),
        (4096, 8192, (128, 512, 2048, 4096)),
        (64, 21, (24,)),
        (5, 2, (8,)),
    ],
)
def test_buckets_grow_fourfold_to_the_longest_sequence(max_num_tokens, max_input_len, expected):
    assert buckets(Limits(4, max_num_tokens, max_input_len)) == expected


@given(any_limits)
def test_four_sequences_fit_a_batch_of_any_length(limits):
    longest = min(limits.max_input_len, limits.max_num_tokens)
    for length in {1, longest, *(b for b in buckets(limits) if b <= longest)}:
        assert length <= bucket(length, limits) in buckets(limits)
        assert 4 <= most_sequences(length, limits) <= limits.max_batch_size


@given(any_limits, st.data())
def test_padding_inside_attention_is_bounded(limits, data):
    longest = min(limits.max_input_len, limits.max_num_tokens)
    lengths = data.draw(st.lists(st.integers(1, longest) | st.integers(1, 9).map(lambda n: min(n, longest))))
    slots = BUCKET_RATIO * max(limits.max_num_tokens, buckets(limits)[-1])
    for batch in plan(lengths, limits):
        width = bucket(max(lengths[i] for i in batch), limits)
        assert len(batch) * width <= max(slots, limits.max_batch_size * SHORTEST_BUCKET)
        assert len(batch) * width <= slots or width <= SHORTEST_BUCKET


@given(st.integers(0, 3), st.integers(1, 60), st.randoms(use_true_random=False))
def test_the_bound_on_padding_never_cuts_a_batch_of_similar_lengths(which, sequences, random):
    limits = Limits(max_batch_size=10**6, max_num_tokens=8192, max_input_len=5000)
    last = buckets(limits)[which]
    lengths = [random.randint(last // BUCKET_RATIO + 1, min(last, 5000)) for _ in range(sequences)]
    for batch in list(plan(lengths, limits))[:-1]:
        assert sum(lengths[batch.start : batch.stop + 1]) > limits.max_num_tokens


def test_the_bound_on_padding_cuts_a_batch_of_many_short_sequences_and_a_long_one():
    limits = Limits(max_batch_size=64, max_num_tokens=2048, max_input_len=1024)
    lengths = [4] * 40 + [600]
    assert list(plan(lengths, limits)) == [range(40), range(40, 41)]
    assert most_sequences(600, limits) == 4 * 2048 // 1024


def test_a_batch_is_planned_without_reading_all_lengths():
    def endless():
        while True:
            yield 3

    assert next(plan(endless(), Limits(max_batch_size=4, max_num_tokens=100, max_input_len=10))) == range(4)


@pytest.mark.parametrize("length", [0, -1, 11, 101])
def test_a_sequence_that_fits_no_batch_is_an_error(length):
    limits = Limits(max_batch_size=4, max_num_tokens=100, max_input_len=10)
    with pytest.raises(EngineError, match=f"sequence 1 has {length} tokens; a packed batch takes 1 to 10"):
        list(plan([5, length], limits))


@given(sequences, conventions)
def test_every_token_is_packed_once_in_order(given_sequences, convention):
    batch = pack(given_sequences, convention)
    assert np.array_equal(batch.input_ids, np.concatenate(given_sequences))
    assert batch.context_lengths.tolist() == [len(s) for s in given_sequences]
    assert batch.position_ids.tolist() == [i for s in given_sequences for i in range(len(s))]
    assert (batch.n_sequences, batch.n_tokens) == (len(given_sequences), sum(map(len, given_sequences)))


@given(sequences, conventions)
def test_every_array_is_contiguous_int32(given_sequences, convention):
    for array in vars(pack(given_sequences, convention)).values():
        assert array.dtype == np.int32 and array.flags.c_contiguous


@given(sequences, conventions)
def test_padding_and_packing_undo_each_other(given_sequences, convention):
    batch = pack(given_sequences, convention)
    tokens = np.arange(batch.n_tokens)
    assert np.array_equal(batch.padded_index.reshape(-1)[batch.packed_index], tokens)


@given(sequences, conventions)
def test_a_padded_slot_belongs_to_its_own_sequence_and_repeats_its_last_token(given_sequences, convention):
    batch = pack(given_sequences, convention)
    longest = max(map(len, given_sequences))
    width = batch.padded_index.shape[1]
    assert width % PADDED_LENGTH_MULTIPLE == 0 and longest <= width < longest + PADDED_LENGTH_MULTIPLE
    for row, sequence in zip(batch.padded_index, given_sequences, strict=True):
        expected = np.concatenate([sequence, np.repeat(sequence[-1:], width - len(sequence))])
        assert np.array_equal(batch.input_ids[row], expected)


@given(sequences, conventions)
def test_the_gathered_token_is_the_last_of_its_sequence(given_sequences, convention):
    batch = pack(given_sequences, convention)
    subtracted_by_the_engine = {GatherConvention.EXCLUSIVE_END: 1, GatherConvention.INCLUSIVE_END: 0}[convention]
    gathered = batch.last_token_ids - subtracted_by_the_engine
    assert batch.input_ids[gathered].tolist() == [s[-1] for s in given_sequences]
    assert batch.position_ids[gathered].tolist() == [len(s) - 1 for s in given_sequences]
    following = gathered[:-1] + 1
    assert (batch.position_ids[following] == 0).all()


@pytest.mark.parametrize("convention", ["exclusive_end", "inclusive_end", None, 0, 1, True])
def test_an_unknown_convention_is_refused(convention):
    with pytest.raises(EngineError, match="gather convention is"):
        gather_ids(np.array([1, 2], dtype=np.int32), convention)
    with pytest.raises(EngineError, match="gather convention is"):
        pack([np.array([1], dtype=np.int32)], convention)
