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
def test_in_a_crowded_batch_every_sequence_has_a_code_of_its_own(limits):
    crowded = large_layouts(limits)[0]
    codes = np.array([c.must_move for c in crowded.changes if "bit" in c.label])
    assert codes.any(axis=0).all()
    assert len(np.unique(codes, axis=1).T) == len(crowded.lengths)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_change_of_last_tokens_is_of_those_that_must_move(limits):
    for layout in large_layouts(limits):
        lasts = np.cumsum(layout.lengths) - 1
        for change in layout.changes:
            assert (change.must_move ^ change.must_stay).all()
            if "last" in change.label:
                np.testing.assert_array_equal(change.positions, lasts[change.must_move])
