"""Batches for tests of the engines, and the tensors of the packed graph in the order in which it has them."""

from __future__ import annotations

import numpy as np

from resources.packing import PackedBatch, pack
from resources.records import GatherConvention

INPUTS = ["input_ids", "position_ids", "last_token_ids", "padded_index", "packed_index"]
TENSORS = [*INPUTS, "hidden_states"]


def batch(*lengths: int) -> PackedBatch:
    """Random tokens in sequences of these lengths; the same again for the same lengths."""
    random = np.random.default_rng(sum(lengths))
    return pack([random.integers(3, 200, n) for n in lengths], GatherConvention.EXCLUSIVE_END)
