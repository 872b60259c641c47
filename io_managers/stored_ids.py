"""The probe ids of a stored partition as hashes, and how many of them went. No Dagster.

Contract: memory is 8 bytes a row. Two ids with one hash would be counted as one, which happens once in some 10**6
partitions of 4 million rows: this is a count for people, not an identity.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from io_managers.errors import StoreError
from io_managers.stored_rows import stored_batches
from io_managers.tables import TableSpec


def stored_ids(lake: Path | str, spec: TableSpec, part: str, *, model_key: str | None = None) -> np.ndarray:
    """uint64 [n], a hash of each row's probe id; empty where nothing is stored."""
    hashes = [
        value_hashes(batch["probe_id"])
        for batch in stored_batches(lake, spec, {"part": part}, model_key=model_key, columns=["probe_id"])
    ]
    return np.concatenate(hashes) if hashes else np.zeros(0, dtype=np.uint64)


def ids_to_replace(lake: Path | str, spec: TableSpec, part: str, *, model_key: str | None = None) -> np.ndarray:
    """The same of a partition that is about to be replaced: empty if it is damaged, which is no reason not to."""
    try:
        return stored_ids(lake, spec, part, model_key=model_key)
    except StoreError:
        return np.zeros(0, dtype=np.uint64)


def withdrawn(before: np.ndarray, after: np.ndarray) -> int:
    """How many of the ids before are not among those after."""
    return int(np.isin(before, after, invert=True).sum())


def value_hashes(column: pa.Array) -> np.ndarray:
    """uint64 [n]: a hash of each text or binary value."""
    values = (v.encode() if isinstance(v, str) else v for v in column.to_pylist())
    return np.fromiter((xxhash.xxh3_64_intdigest(v) for v in values), dtype=np.uint64, count=len(column))
