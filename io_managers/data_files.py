"""The Parquet files of one partition: written in order and made durable before anything refers to them.

Contract: rows keep the order in which they are given, across the files in the order of their names. A file has its
final name only once all of the write's files are whole and fsynced; until then it ends in `.tmp`. An exception, also
one of the rows' source, removes what was written and surfaces as itself. Memory is about one row group.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_BYTES = 4 << 20
"""The knob that decides the speed of writing and reading (shared notes, delta.md, 1.4)."""

FILE_BYTES = 512 << 20
UNFINISHED = ".tmp"
_MAGIC = b"PAR1"


@dataclass(frozen=True)
class DataFile:
    """One Parquet file; `path` is relative to the table's folder, as the Delta log has it."""

    path: str
    rows: int
    bytes: int


def write_files(root: Path, folder: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Writes `batches` (each of `schema`) under `root / folder`; no rows give no file."""
    target = root / folder
    target.mkdir(parents=True, exist_ok=True)
    stem = f"{uuid.uuid4()}"
    files: list[DataFile] = []
    try:
        for index, groups in enumerate(_by_file(_row_groups(batches))):
            name = f"part-{index:05d}-{stem}.parquet"
            rows = _write_file(target / (name + UNFINISHED), schema, groups)
            files.append(DataFile(f"{folder}/{name}", rows, (target / (name + UNFINISHED)).stat().st_size))
        for file in files:
            os.rename(root / (file.path + UNFINISHED), root / file.path)
    except BaseException:
        for path in target.glob(f"*{stem}.parquet*"):
            path.unlink(missing_ok=True)
        raise
    sync_folders(target, root)
    return files


def remove_files(root: Path, files: Sequence[DataFile]) -> None:
    """Removes files that no commit refers to."""
    for file in files:
        (root / file.path).unlink(missing_ok=True)


def damage(root: Path, file: DataFile) -> str | None:
    """What is wrong with a file that the log refers to, by its size and its last bytes; None if nothing is."""
    path = root / file.path
    try:
        size = path.stat().st_size
        with open(path, "rb") as handle:
            handle.seek(max(0, size - len(_MAGIC)))
            tail = handle.read()
    except FileNotFoundError:
        return f"{path} is missing"
    if size != file.bytes:
        return f"{path} has {size} bytes, the log says {file.bytes}"
    return None if tail == _MAGIC else f"{path} does not end like a Parquet file"


def sync_file(path: Path) -> None:
    """fsync of a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folders(folder: Path, root: Path) -> None:
    """fsync of `folder` and of every folder above it up to `root`."""
    sync_file(folder)
    while folder != root:
        folder = folder.parent
        sync_file(folder)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about `ROW_GROUP_BYTES` each."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        row_bytes = max(1, -(-batch.nbytes // max(1, batch.num_rows)))
        start = 0
        while start < batch.num_rows:
            room = (ROW_GROUP_BYTES - size) // row_bytes
            if held and room < 1:
                yield pa.Table.from_batches(held)
                held, size = [], 0
                continue
            held.append(batch.slice(start, max(1, room)))
            size += held[-1].num_rows * row_bytes
            start += held[-1].num_rows
    if held:
        yield pa.Table.from_batches(held)


def _by_file(groups: Iterator[pa.Table]) -> Iterator[Iterator[pa.Table]]:
    """Cuts the row groups into files of about `FILE_BYTES`; each is to be used up before the next is asked for."""
    for first in groups:

        def one_file(first: pa.Table = first) -> Iterator[pa.Table]:
            yield first
            size = first.nbytes
            while size < FILE_BYTES and (group := next(groups, None)) is not None:
                yield group
                size += group.nbytes

        yield one_file()


def _write_file(path: Path, schema: pa.Schema, groups: Iterator[pa.Table]) -> int:
    # Hashes and payloads do not compress (shared notes, delta.md, 1.3); what names them does.
    plain = {f.name for f in schema if pa.types.is_binary(f.type)}
    leaves = {f.name: f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in schema}
    rows = 0
    with ExitStack() as stack:
        writer = stack.enter_context(
            pq.ParquetWriter(
                path,
                schema,
                compression={leaf: "NONE" if name in plain else "ZSTD" for name, leaf in leaves.items()},
                use_dictionary=[leaf for name, leaf in leaves.items() if name not in plain],
                write_statistics=[leaf for name, leaf in leaves.items() if name not in plain],
                store_schema=False,
            )
        )
        for group in groups:
            writer.write_table(group, row_group_size=group.num_rows)
            rows += group.num_rows
    sync_file(path)
    return rows
