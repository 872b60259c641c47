from __future__ import annotations

import numpy as np
import pytest

from resources.errors import FabricError
from resources.records import token_hash
from resources.work_items.cut import sequence_starts


def arrays(sequences: list[list[int]], hashes: list[bytes] | None = None):
    ids = [np.array(s, dtype=np.int32) for s in sequences]
    hashes = hashes or [token_hash(s) for s in ids]
    matrix = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, 16)
    return np.array([len(s) for s in ids], dtype=np.int32), matrix, np.concatenate(ids)


@pytest.mark.parametrize(
    ("sequences", "starts"),
    [
        ([[1]], [0]),
        ([[1], [1], [1]], [0]),
        ([[1], [2], [2], [3, 3], [3, 3], [3, 4]], [0, 1, 3, 5]),
    ],
)
def test_equal_neighbours_are_one_sequence(sequences, starts):
    assert sequence_starts(*arrays(sequences)).tolist() == starts


@pytest.mark.parametrize("sequences", [[[1, 2], [1, 3]], [[1], [1, 2]], [[5], [1, 2], [1, 2], [2, 2]]])
def test_two_sequences_under_one_hash_are_an_error(sequences):
    hashes = [b"h" * 16] * len(sequences)
    with pytest.raises(FabricError, match="two different token sequences have one hash"):
        sequence_starts(*arrays(sequences, hashes))
