"""The shape of a tokenised row, and the two arrays that Arrow has no short way to build or read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))


def _column(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


ROWS = pa.schema(
    [
        _column("part", pa.string()),
        _column("work_item_id", pa.string()),
        _column("row_index", pa.int32()),
        _column("sequence_index", pa.int32()),
        _column("probe_id", pa.string()),
        _column("n_tokens", pa.int32()),
        _column("truncated", pa.bool_()),
        _column("token_hash", pa.binary()),
        _column("token_ids", _IDS),
    ]
)
"""The schema of a tokenised row, which is the `tokenised_batches` table's."""

TOKENISED = pa.schema([ROWS.field(name) for name in ("n_tokens", "token_hash", "probe_id", "truncated", "token_ids")])
"""A tokenised row before it has a place in a work item."""


def id_lists(flat: pa.Array, lengths: np.ndarray) -> pa.ListArray:
    """The `token_ids` column of ids laid end to end; `lengths` int [n]."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=_IDS)


def hash_matrix(column: pa.Array) -> np.ndarray:
    """uint8 [n, 16] of a binary column whose values all have 16 bytes."""
    return np.frombuffer(b"".join(column.to_pylist()), dtype=np.uint8).reshape(len(column), 16)
