"""The Parquet files of one partition: written in order and made durable before anything refers to them.

Contract: rows keep the order in which they are given, across the files in the order of their names. A file has its
final name only once all of the write's files are whole and fsynced; until then it ends in `.tmp`. That name ends in the
xxh3-128 of the file's bytes, so the log, which has the name, says what the file must hold. Every Parquet page has a
checksum too, for those who read it. An exception, also one of the rows' source, removes what was written and surfaces
as itself. Memory is about one row group.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from io_managers.places import Place
from resources.durable import sync_file, sync_folders
from resources.records import file_digest

ROW_GROUP_BYTES = 4 << 20
"""Decides the speed of writing, and of reading one vector; a fixed number of rows would grow with the width."""

FILE_BYTES = 512 << 20
UNFINISHED = ".tmp"


@dataclass(frozen=True)
class DataFile:
    """One Parquet file; `path` is relative to the table's folder, as the Delta log has it."""

    path: str
    rows: int
    bytes: int

    @property
    def xxh3(self) -> str:
        """The hash of its bytes that its name says, as 32 hexadecimal digits."""
        return Path(self.path).stem.rpartition("-")[2]


def write_files(root: Place, folder: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Writes `batches` (each of `schema`) under `root / folder`; no rows give no file.

    Files of an object store are written to a temporary folder of this machine first, since their names end in their
    hashes, and uploaded once all of them are whole.
    """
    if isinstance(root, Path):
        return _write_files(root, folder, schema, batches)
    with tempfile.TemporaryDirectory(prefix="fabric-") as staging:
        files = _write_files(Path(staging), folder, schema, batches)
        try:
            for file in files:
                (root / file.path).upload(Path(staging) / file.path)
        except BaseException:
            remove_files(root, files)
            raise
    return files


def remove_files(root: Place, files: Sequence[DataFile]) -> None:
    """Removes files that no commit refers to."""
    for file in files:
        (root / file.path).unlink(missing_ok=True)


def damage(root: Place, file: DataFile, *, read: bool = True) -> str | None:
    """What is wrong with a file that the log refers to; None if nothing is.

    With `read` all of it is read and hashed, at some 5 GB/s from a disk; else only its size is looked at.
    """
    path = root / file.path
    try:
        size = path.stat().st_size
        if size != file.bytes:
            return f"{path} has {size} bytes, the log says {file.bytes}"
        if not read:
            return None
        seen = _digest(path)
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read ({error})"
    if seen != file.xxh3:
        return f"{path} has the hash {seen}, its name in the log says {file.xxh3}"
    return None


def _write_files(root: Path, folder: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    target = root / folder
    target.mkdir(parents=True, exist_ok=True)
    stem = uuid.uuid4().hex
    files: list[DataFile] = []
    try:
        for index, groups in enumerate(_by_file(_row_groups(batches))):
            unfinished = target / f"part-{index:05d}-{stem}.parquet{UNFINISHED}"
            rows, xxh3 = _write_file(unfinished, schema, groups)
            name = f"part-{index:05d}-{stem}-{xxh3}.parquet"
            files.append(DataFile(f"{folder}/{name}", rows, unfinished.stat().st_size))
        for index, file in enumerate(files):
            os.rename(target / f"part-{index:05d}-{stem}.parquet{UNFINISHED}", root / file.path)
    except BaseException:
        for path in target.glob(f"*{stem}*"):
            path.unlink(missing_ok=True)
        raise
    sync_folders(target, root)
    return files


def _digest(path: Place) -> str:
    if isinstance(path, Path):
        return file_digest(path)
    hasher = xxhash.xxh3_128()
    with path.open() as file:
        while piece := file.read(ROW_GROUP_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()


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


class _HashedFile:
    """A file to write whose bytes are hashed as they come, so that the hash is of what was meant to be stored."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hasher = file, xxhash.xxh3_128()

    def write(self, data: bytes) -> int:
        self._hasher.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


def _write_file(path: Path, schema: pa.Schema, groups: Iterator[pa.Table]) -> tuple[int, str]:
    """The number of rows and the hash of the file."""
    # Hashes and payloads do not compress; what names them does.
    plain = {f.name for f in schema if pa.types.is_binary(f.type)}
    leaves = {f.name: f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in schema}
    rows = 0
    with ExitStack() as stack:
        sink = _HashedFile(stack.enter_context(open(path, "wb")))
        writer = stack.enter_context(
            pq.ParquetWriter(
                sink,
                schema,
                compression={leaf: "NONE" if name in plain else "ZSTD" for name, leaf in leaves.items()},
                use_dictionary=[leaf for name, leaf in leaves.items() if name not in plain],
                write_statistics=[leaf for name, leaf in leaves.items() if name not in plain],
                store_schema=False,
                write_page_checksum=True,
            )
        )
        for group in groups:
            writer.write_table(group, row_group_size=group.num_rows)
            rows += group.num_rows
    sync_file(path)
    return rows, sink.hexdigest()
