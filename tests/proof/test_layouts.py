import numpy as np
import pytest

from resources.proof.layouts import large_layouts
from resources.records import Limits

LIMITS = [
    Limits(4, 5, 2),
    Limits(12, 64, 24),
    Limits(128, 4096, 2048),
    Limits(4, 4096, 2048),
    Limits(7, 64, 9),
    Limits(5000, 300, 3),
    Limits(64, 64, 64),
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_layouts_are_within_the_limits_and_reach_each(limits):
    lengths = [layout.lengths for layout in large_layouts(limits)]
    for each in lengths:
        assert len(each) <= limits.max_batch_size
        assert each.sum() <= limits.max_num_tokens
        assert 1 <= each.min() <= each.max() <= limits.max_input_len
    assert max(len(e) for e in lengths) == min(limits.max_batch_size, limits.max_num_tokens)
    assert max(e.sum() for e in lengths) == min(limits.max_num_tokens, limits.max_batch_size * limits.max_input_len)
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
