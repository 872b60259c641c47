import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.packing import most_sequences, plan
from resources.proof.layouts import large_layouts, micro_layouts
from resources.records import Limits

LIMITS = [
    Limits(4, 5, 2),
    Limits(12, 64, 24),
    Limits(128, 4096, 2048),
    Limits(4, 4096, 2048),
    Limits(7, 64, 9),
    Limits(5000, 300, 3),
    Limits(64, 64, 64),
    Limits(512, 16384, 512),
    Limits(64, 2048, 1024),
]
any_limits = st.builds(
    Limits, max_batch_size=st.integers(4, 3000), max_num_tokens=st.integers(5, 9000), max_input_len=st.integers(2, 9000)
)


@given(any_limits)
def test_every_layout_is_a_batch_that_a_plan_of_work_can_make(limits):
    for layout in (*large_layouts(limits), *micro_layouts()):
        assert list(plan(layout.lengths.tolist(), limits)) == [range(len(layout.lengths))]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_layouts_are_within_the_limits_and_reach_each(limits):
    lengths = [layout.lengths for layout in large_layouts(limits)]
    for each in lengths:
        assert len(each) <= limits.max_batch_size
        assert each.sum() <= limits.max_num_tokens
        assert 1 <= each.min() <= each.max() <= limits.max_input_len
    most = most_sequences(1, limits)
    assert max(len(e) for e in lengths) == min(most, limits.max_num_tokens)
    assert max(e.sum() for e in lengths) == min(limits.max_num_tokens, most * limits.max_input_len)
    assert max(e.max() for e in lengths) == limits.max_input_len


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_crowded_batches_have_even_and_odd_numbers_of_sequences_and_each_a_code_of_its_own(limits):
    crowded = [layout for layout in large_layouts(limits) if "crowded" in layout.name]
    most = len(crowded[0].lengths)
    assert {len(layout.lengths) for layout in crowded} == {most, most - 1, 3}
    for layout in crowded:
        codes = np.array([c.must_move for c in layout.changes if "bit" in c.label])
        assert codes.any(axis=0).all()
        assert len(np.unique(codes, axis=1).T) == len(layout.lengths)


@pytest.mark.parametrize("reach", [None, 1, 2, 7, 10_000])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_at_a_limit_every_sequence_has_its_last_token_changed_alone_and_its_first_half_alone(limits, reach):
    for layout in large_layouts(limits, reach=reach):
        if "crowded" in layout.name:
            continue
        starts = np.cumsum(layout.lengths) - layout.lengths
        for i, (start, length) in enumerate(zip(starts, layout.lengths, strict=True)):
            changed = [
                (c.positions[(c.positions >= start) & (c.positions < start + length)], c) for c in layout.changes
            ]
            for positions, c in changed:
                mostly = c.mostly_move is not None and c.mostly_move[i]
                assert bool(len(positions)) == (c.must_move[i] or mostly) != c.must_stay[i]
                assert c.must_move[i] == (tuple(positions - start) == (length - 1,))
            seen = {tuple(positions - start) for positions, _ in changed if len(positions)}
            # What a vector can depend on, its own token with it.
            part = range(length)[-(reach or length) :]
            assert seen == {(length - 1,), *([tuple(part[: len(part) // 2])] if len(part) > 1 else [])}
