"""Stored vectors -> a polars frame of what names them and one numpy matrix.

Contract: row i of the frame belongs to row i of the matrix [n, dim]. float32 and float16 come as they are; bfloat16,
which numpy lacks, as float32 (exact), or any of them as the raw bits (uint16 or uint32) on request. No vector is given
whose payload does not have the hash that was taken when the engine gave it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import xxhash

from io_managers import layout
from io_managers.contents import transaction_name
from io_managers.data_files import DataFile
from io_managers.errors import StoreError
from io_managers.open_tables import open_table, stored_files, table_path
from io_managers.places import place
from io_managers.stored_rows import file_batches, stored_models, stored_records
from io_managers.tables import ENGINES, HIDDEN_STATES
from io_managers.work_item_rows import HASH_BYTES, binary_rows
from resources.records import ITEM_SIZE, payload_elements

ROWS_A_BATCH = 4096
ID_COLUMNS = tuple(name for name in HIDDEN_STATES.schema.names if name != "payload")

PAYLOAD_COLUMNS = ("part", "probe_id", "payload_xxh3", "payload")
"""What `payload_matrix` needs of a batch."""


def read_hidden_states(
    part: str | None = None,
    *,
    lake: Path | str | None = None,
    model_key: str | None = None,
    as_bits: bool = False,
) -> tuple[pl.DataFrame, np.ndarray]:
    """The ids and the matrix of one partition, or of every partition; both empty where nothing was stored in it.

    `lake` defaults to the home's. `model_key` defaults to the one table there is; with several, to the newest engine's.
    Raises `StoreError` where there is no such table or partition.
    """
    lake, model_key = _located(lake, model_key)
    files = _files(lake, model_key, part)
    total = sum(file.rows for file in files)
    frames: list[pl.DataFrame] = []
    matrix: np.ndarray | None = None
    filled = 0
    for frame, block in _pairs(lake, model_key, files, as_bits=as_bits, rows=ROWS_A_BATCH):
        if matrix is None:
            matrix = np.empty((total, block.shape[1]), dtype=block.dtype)
        matrix[filled : filled + len(block)] = block
        filled += len(block)
        frames.append(frame)
    if matrix is None:
        return _frame(HIDDEN_STATES.schema.empty_table()), np.empty((0, 0), dtype=np.float32)
    return pl.concat(frames), matrix


def iter_hidden_states(
    part: str | None = None,
    *,
    lake: Path | str | None = None,
    model_key: str | None = None,
    as_bits: bool = False,
    rows: int = ROWS_A_BATCH,
) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
    """The same pairs, at most `rows` rows at a time, in the order of storage. Arguments as `read_hidden_states`."""
    lake, model_key = _located(lake, model_key)
    yield from _pairs(lake, model_key, _files(lake, model_key, part), as_bits=as_bits, rows=rows)


def payload_kind(batch: pa.RecordBatch, expected: tuple[str, int] | None = None) -> tuple[str, int]:
    """The dtype and dim that all rows of a non-empty batch have, and `expected` if given; else a `StoreError`."""
    dtypes, dims = (batch[name].unique().to_pylist() for name in ("dtype", "dim"))
    if len(dtypes) != 1 or len(dims) != 1 or (expected is not None and (dtypes[0], dims[0]) != expected):
        raise StoreError(
            f"stored vectors have dtypes {dtypes} and dims {dims}; expected {expected or 'one of each'}; "
            "a table holds one dtype and dim; materialise hidden_states again"
        )
    return dtypes[0], dims[0]


def payload_matrix(batch: pa.RecordBatch, kind: tuple[str, int], *, as_bits: bool = False) -> np.ndarray:
    """The payloads of a batch as a matrix [n, dim]; without a copy where numpy has the dtype.

    Raises `StoreError`, which names the probe, for a payload that does not have its `payload_xxh3`.
    """
    dtype, dim = kind
    if dtype not in ITEM_SIZE:
        raise StoreError(
            f"stored vectors have dtype {dtype!r}; expected one of {sorted(ITEM_SIZE)}; materialise hidden_states again"
        )
    raw = binary_rows(batch["payload"], dim * ITEM_SIZE[dtype])
    _require_hashes(batch, raw)
    if as_bits:
        return raw.view(f"<u{ITEM_SIZE[dtype]}")
    return payload_elements(raw, dtype)


def default_model_key(lake: Path | str) -> str:
    """The model whose vectors are meant where none is named."""
    folder = place(lake) / HIDDEN_STATES.name
    stored = stored_models(lake)
    if len(stored) == 1:
        return stored[0]
    if not stored:
        raise StoreError(f"there are no vectors in {folder}; run `fabric extract`, or name another lake")
    newest = max(stored_records(lake, ENGINES, {}), key=lambda row: row["built_at"], default=None)
    if newest is None or newest["model_key"] not in stored:
        raise StoreError(
            f"{folder} has the vectors of {len(stored)} models, {', '.join(stored)}; expected one, or that of the "
            "newest engine among them; name one as model_key"
        )
    return str(newest["model_key"])


def _require_hashes(batch: pa.RecordBatch, raw: np.ndarray) -> None:
    seen = np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, raw)), dtype=np.uint8).reshape(-1, HASH_BYTES)
    stored = binary_rows(batch["payload_xxh3"], HASH_BYTES)
    if not np.array_equal(seen, stored):
        at = int(np.flatnonzero((seen != stored).any(axis=1))[0])
        raise StoreError(
            f"the vector of probe {batch['probe_id'][at].as_py()!r} in partition {batch['part'][at]} has the hash "
            f"{seen[at].tobytes().hex()}; it was stored with {stored[at].tobytes().hex()}; "
            "materialise hidden_states for that partition again"
        )


def _located(lake: Path | str | None, model_key: str | None) -> tuple[Path | str, str]:
    lake = layout.lake_path() if lake is None else lake
    return lake, default_model_key(lake) if model_key is None else model_key


def _files(lake: Path | str, model_key: str, part: str | None) -> list[DataFile]:
    """Of one version, which is what a reader keeps to."""
    path = table_path(lake, HIDDEN_STATES, model_key)
    table = open_table(path)
    if table is None:
        raise StoreError(f"there are no vectors at {path}; run `fabric extract`, or name another model_key or lake")
    scope = {} if part is None else {"part": part}
    # A partition whose probes were all refused has no rows, but it was committed.
    if part is not None and table.transaction_version(transaction_name(HIDDEN_STATES, scope)) is None:
        raise StoreError(f"partition {part!r} is not among the vectors at {path}; materialise hidden_states for it")
    return stored_files(table, scope)


def _pairs(
    lake: Path | str, model_key: str, files: Sequence[DataFile], *, as_bits: bool, rows: int
) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
    kind: tuple[str, int] | None = None
    for batch in file_batches(lake, HIDDEN_STATES, files, model_key=model_key, rows=rows):
        kind = payload_kind(batch, kind)
        yield _frame(pa.Table.from_batches([batch])), payload_matrix(batch, kind, as_bits=as_bits)


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table.select(list(ID_COLUMNS)))
    assert isinstance(frame, pl.DataFrame)
    return frame
