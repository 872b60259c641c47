"""One partition's vectors -> a file that describes itself: `.npy`, `.safetensors` or `.parquet`.

Contract: the vectors stream from the table to the file, the hash of every payload verified; the file appears whole or
not at all. The header (`Header`, as JSON) says what the vectors are without the lake. A `.parquet` holds ids, payloads
and header in one file; beside a `.npy` or `.safetensors` lies `<file>.ids.parquet` with the ids, row for row, and the
header. In Parquet the header is the metadata value `fabric`; in `.safetensors` it is in `__metadata__` too. A bfloat16
`.npy` holds float32 (exact), since numpy has no bfloat16.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from io_managers import layout
from io_managers.data_files import DataFile
from io_managers.errors import StoreError
from io_managers.stored_rows import data_files, file_batches, stored_records
from io_managers.tables import EXTRACTION_REQUESTS, HIDDEN_STATES
from io_managers.vectors import (
    ID_COLUMNS,
    PAYLOAD_COLUMNS,
    ROWS_A_BATCH,
    default_model_key,
    payload_kind,
    payload_matrix,
)
from resources.durable import sync_file
from resources.records import BYTE_ORDER, ITEM_SIZE

HEADER_KEY = b"fabric"
SIDECAR = ".ids.parquet"

Batches = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]

_COLUMNS = tuple(HIDDEN_STATES.schema.names)
_SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Header:
    """What the vectors of an export are. `dtype` is the engine's; `file_dtype` is what this file holds."""

    part: str
    model_key: str
    engine_ids: tuple[str, ...]
    shape: tuple[int, int]
    dtype: str
    file_dtype: str
    byte_order: str
    tap: str
    normalised: bool
    position_rule: str


def export_partition(
    part: str, path: Path | str, *, lake: Path | str | None = None, model_key: str | None = None
) -> int:
    """Writes the vectors of `part` to `path`, whose suffix says the format; returns the number of rows.

    Raises `StoreError` for another suffix, and for a partition that has no vectors.
    """
    path = Path(path)
    lake = layout.lake_path() if lake is None else lake
    write = {".npy": _write_npy, ".safetensors": _write_safetensors, ".parquet": _write_parquet}.get(path.suffix)
    if write is None:
        raise StoreError(f"an export to {path.name} was asked for; expected .npy, .safetensors or .parquet; rename it")
    model_key = default_model_key(lake) if model_key is None else model_key
    # Once: the file's header, its ids and its vectors are of one version.
    files = data_files(lake, HIDDEN_STATES, {"part": part}, model_key=model_key)
    header = _header(part, lake, model_key, files)

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return file_batches(lake, HIDDEN_STATES, files, model_key=model_key, columns=columns, rows=ROWS_A_BATCH)

    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, header, batches)
    return header.shape[0]


def _header(part: str, lake: Path | str, model_key: str, files: Sequence[DataFile]) -> Header:
    n_rows = sum(file.rows for file in files)
    first = next(file_batches(lake, HIDDEN_STATES, files, model_key=model_key, rows=1), None)
    if first is None:
        raise StoreError(f"partition {part!r} has no vectors of model {model_key}; materialise hidden_states for it")
    dtype, dim = payload_kind(first)
    asked: set[str] = set()
    for batch in file_batches(lake, HIDDEN_STATES, files, model_key=model_key, columns=["request_id"]):
        asked.update(batch["request_id"].unique().to_pylist())
    requests = {
        r["request_id"]: r
        for r in stored_records(lake, EXTRACTION_REQUESTS, {"part": part})
        if r["request_id"] in asked
    }
    forms = {(r["tap"], r["normalised"], r["position_rule"]) for r in requests.values()}
    if len(requests) != len(asked) or len(forms) != 1:
        raise StoreError(
            f"the vectors of {part!r} answer {len(asked)} requests, of which {len(requests)} are stored, in "
            f"{len(forms)} forms; expected all of them, in one; materialise extraction_requests and hidden_states again"
        )
    tap, normalised, position_rule = forms.pop()
    return Header(
        part=part,
        model_key=model_key,
        engine_ids=tuple(sorted({r["engine_id"] for r in requests.values()})),
        shape=(n_rows, dim),
        dtype=dtype,
        file_dtype=dtype,
        byte_order=BYTE_ORDER,
        tap=tap,
        normalised=normalised,
        position_rule=position_rule,
    )


def _write_npy(path: Path, header: Header, batches: Batches) -> None:
    header = replace(header, file_dtype="float16" if header.dtype == "float16" else "float32")
    kind = np.dtype(header.file_dtype).newbyteorder("<").str
    _write_ids(path, header, batches)
    with _whole(path) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": header.shape})
        for batch in batches(PAYLOAD_COLUMNS):
            file.write(payload_matrix(batch, (header.dtype, header.shape[1])).data)


def _write_safetensors(path: Path, header: Header, batches: Batches) -> None:
    rows, dim = header.shape
    tensor = {
        "dtype": _SAFETENSORS[header.dtype],
        "shape": [rows, dim],
        "data_offsets": [0, rows * dim * ITEM_SIZE[header.dtype]],
    }
    head = json.dumps({"__metadata__": {"fabric": _json(header)}, "hidden_states": tensor}).encode()
    head += b" " * (-len(head) % 8)
    _write_ids(path, header, batches)
    with _whole(path) as file:
        file.write(struct.pack("<Q", len(head)))
        file.write(head)
        for batch in batches(PAYLOAD_COLUMNS):
            file.write(payload_matrix(batch, (header.dtype, dim), as_bits=True).data)


def _write_parquet(path: Path, header: Header, batches: Batches, columns: Sequence[str] = _COLUMNS) -> None:
    schema = pa.schema([HIDDEN_STATES.schema.field(name) for name in columns], metadata={HEADER_KEY: _json(header)})
    compression = {name: "NONE" if name == "payload" else "ZSTD" for name in columns}
    with (
        _whole(path) as file,
        pq.ParquetWriter(file, schema, compression=compression, use_dictionary=False) as writer,
    ):
        for batch in batches(columns):
            if "payload" in columns:
                payload_matrix(batch, (header.dtype, header.shape[1]), as_bits=True)  # raises for a damaged one
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def _write_ids(path: Path, header: Header, batches: Batches) -> None:
    _write_parquet(path.with_name(path.name + SIDECAR), header, batches, ID_COLUMNS)


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name only once it is written and fsynced; nothing is left of a failed one."""
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(unfinished, "wb") as file:
            yield file
        sync_file(unfinished)
        os.replace(unfinished, path)
        sync_file(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _json(header: Header) -> str:
    return json.dumps(asdict(header))
