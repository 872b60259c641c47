"""Probe files -> a registered probe set: what its files are, where its shards begin, which ids occur twice.

Contract: reads every file once for its rows and once for its digest; memory doesn't grow with the rows. The same
content registered again gives the same set. Nothing is written unless every file can be used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import astuple, replace
from operator import itemgetter
from pathlib import Path

from resources.errors import ConfigurationError, ProbeFileError
from resources.probe_files.duplicates import Ids
from resources.probe_files.probe_set import (
    FileFormat,
    ProbeFormat,
    ProbeSet,
    Shard,
    Source,
    SourceSlice,
    load_probe_set,
    part_key,
    save_probe_set,
)
from resources.probe_files.probes import row_id
from resources.probe_files.rows import Row, check_parquet_types, field_names, listed, read_rows
from resources.records import PART_KEY, digest, file_digest

ENDINGS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".txt": "text",
    ".text": "text",
}

SHARD_ROWS = 10_000
"""Most rows of a shard, unless asked otherwise."""

MAX_NAME = 100
"""Characters of a set's name, so that a shard's number fits into a partition key."""

Progress = Callable[[int, int], None]
"""Called now and then with the bytes read so far and in all."""

_PROGRESS_ROWS = 16_384


def register(
    path: Path,
    *,
    format: ProbeFormat,
    folder: Path,
    name: str | None = None,
    shard_rows: int = SHARD_ROWS,
    progress: Progress | None = None,
) -> ProbeSet:
    """Indexes a file, or a folder's files in the order of their relative names, and keeps the index in `folder`.

    Files and folders whose name begins with `.` or `_` are passed over. `name` is derived from the path's own name when
    not given. A set of that name that was made from other files is not replaced; one from the same files is.
    """
    if shard_rows < 1:
        raise ConfigurationError(f"shard_rows is {shard_rows}; a shard needs at least 1 row")
    path = Path(os.path.abspath(path))  # a link keeps its own name and ending
    files = list(_files(path))
    name = _set_name(path) if name is None else _checked_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(file.stat().st_size for file, _ in files)
    cutter, read = _Cutter(name, shard_rows), 0
    sources: list[Source] = []
    with ExitStack() as stack:
        ids = stack.enter_context(Ids(folder)) if format.id_field else None
        for index, (file, relative) in enumerate(files):
            source = _unread_source(file, relative, format)
            for row in _checked_rows(file, source, format):
                probe_id = row_id(row, source, format)
                if ids and isinstance(probe_id, str):
                    ids.add(probe_id, cutter.n_rows, index, row.number)
                if progress and cutter.n_rows % _PROGRESS_ROWS == 0:
                    progress(read + row.offset, total)
                cutter.add(index, row)
            sources.append(_read_source(source, file, cutter.n_rows - sum(s.n_rows for s in sources)))
            read += source.size
            if progress:
                progress(read, total)
        probe_set = ProbeSet(name, str(path), format, tuple(sources), tuple(cutter.shards()), None)
        _refuse_another_set(probe_set, folder)
        duplicates = folder / f"{name}.{_content_digest(probe_set)}.duplicates.parquet"
        if ids and ids.write_duplicates(duplicates):
            probe_set = replace(probe_set, duplicates=duplicates)
    save_probe_set(probe_set, folder)
    _remove_stale_duplicates(probe_set, folder)
    return probe_set


def source_digest(path: Path) -> str:
    """`records.file_digest` of a probe file."""
    try:
        return file_digest(path)
    except OSError as error:
        raise ProbeFileError(f"{path} cannot be read: {error}; make it readable, or name another") from error


class _Cutter:
    """Cuts the rows of a set into shards as they pass."""

    def __init__(self, name: str, shard_rows: int) -> None:
        self.n_rows = 0
        self._name = name
        self._shard_rows = shard_rows
        self._shards: list[Shard] = []
        self._slices: list[SourceSlice] = []
        self._open: SourceSlice | None = None
        self._open_rows = 0

    def add(self, source: int, row: Row) -> None:
        full = self.n_rows % self._shard_rows == 0
        if full or self._open is None or self._open.source != source:
            self._close_slice()
            if full:
                self._close_shard()
            self._open = SourceSlice(source, row.number, 0, row.offset)
        self._open_rows += 1
        self.n_rows += 1

    def shards(self) -> list[Shard]:
        self._close_slice()
        self._close_shard()
        return self._shards

    def _close_slice(self) -> None:
        if self._open:
            self._slices.append(replace(self._open, n_rows=self._open_rows))
        self._open, self._open_rows = None, 0

    def _close_shard(self) -> None:
        if self._slices:
            number = len(self._shards)
            part = part_key(self._name, number)
            self._shards.append(Shard(part, number * self._shard_rows, tuple(self._slices)))
        self._slices = []


def _files(path: Path) -> Iterator[tuple[Path, str]]:
    """Each file with its name relative to `path`."""
    if path.is_file():
        found = [(path, path.name)]
    elif path.is_dir():
        below = ((p, p.relative_to(path)) for p in path.rglob("*") if p.is_file())
        found = [(p, r.as_posix()) for p, r in below if not any(part[0] in "._" for part in r.parts)]
        found.sort(key=itemgetter(1))
    else:
        raise ProbeFileError(f"{path} does not exist; give a probe file, or a folder of them")
    if not found:
        raise ProbeFileError(f"{path} holds no probe file; files whose name begins with . or _ are passed over")
    for file, name in found:
        if name != name.encode(errors="replace").decode():
            raise ProbeFileError(f"{name!a} is not a UTF-8 name, and ids are derived from it; rename the file")
        yield file, name


def _set_name(path: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem if path.is_file() else path.name)
    return name.strip("._-")[:MAX_NAME] or "probes"


def _checked_name(name: str) -> str:
    if not PART_KEY.fullmatch(name) or len(name) > MAX_NAME:
        raise ConfigurationError(
            f"probe set name {name!r}: expected a letter or digit, then letters, digits, '.', '_' or '-', "
            f"at most {MAX_NAME} in all; choose another"
        )
    return name


def _unread_source(path: Path, relative: str, wanted: ProbeFormat) -> Source:
    kind = ENDINGS.get(path.suffix.lower()) if wanted.format == "auto" else wanted.format
    if kind is None:
        raise ProbeFileError(
            f"{path}: no known format ends in {path.suffix!r}; known: {', '.join(ENDINGS)}; name one with --format"
        )
    stat = path.stat()
    if stat.st_size == 0:
        raise ProbeFileError(f"{path} is empty; remove it, or give a file with a row for each probe")
    return Source(path.as_uri(), relative, kind, stat.st_size, stat.st_mtime_ns, "", 0)


def _read_source(source: Source, path: Path, n_rows: int) -> Source:
    if n_rows == 0:
        raise ProbeFileError(f"{path} has no rows; remove it, or give a file with a row for each probe")
    whole = replace(source, digest=source_digest(path), n_rows=n_rows)
    stat = path.stat()
    if (stat.st_size, stat.st_mtime_ns) != (source.size, source.mtime_ns):
        raise ProbeFileError(f"{path} changed while it was read; register it again when nothing writes to it")
    return whole


def _checked_rows(path: Path, source: Source, wanted: ProbeFormat) -> Iterator[Row]:
    """The rows of a file whose wanted fields exist: in its schema or header, or in one of its JSON objects."""
    _check_bytes(path, source.format)
    if source.format == "text" and (wanted.id_field or wanted.token_ids_field or wanted.messages_field):
        raise ProbeFileError(f"{path} is a text file, a text a line without fields; leave out --id-field and such")
    declared = field_names(path, source.format)
    if declared is not None:
        _require_fields(path, wanted, declared)
        if source.format == "parquet":
            check_parquet_types(path, wanted)
    seen: dict[str, None] = {}
    missing = set(wanted.named_fields) if source.format == "jsonl" else set()
    objects = rows = 0
    for row in read_rows(path, source.format, wanted, ids_only=True):
        rows += 1
        if missing and not row.fault:
            objects += 1
            missing -= row.fields.keys()
            seen |= dict.fromkeys(row.fields)
        yield row
    if missing and rows and not objects:
        raise ProbeFileError(f"{path}: not one of its {rows:,} lines is a JSON object; name its format with --format")
    if missing and rows:
        _require_fields(path, wanted, list(seen))


def _require_fields(path: Path, wanted: ProbeFormat, seen: list[str]) -> None:
    for field, option in wanted.named_fields.items():
        if field not in seen:
            raise ProbeFileError(
                f"{path}: no row has a field {field!r}; fields seen: {listed(seen)}; name one with {option}"
            )


def _check_bytes(path: Path, kind: FileFormat) -> None:
    try:
        with path.open("rb") as handle:
            head = handle.read(2)
    except OSError as error:
        raise ProbeFileError(f"{path} cannot be read: {error}; make it readable, or name another") from error
    if kind != "parquet" and head in (b"\xff\xfe", b"\xfe\xff"):
        raise ProbeFileError(f"{path} is UTF-16; expected UTF-8; convert it")


def _content_digest(probe_set: ProbeSet) -> str:
    """Of the files' bytes and of how they are read, 16 hex digits."""
    reading = [str(value).encode() for value in astuple(probe_set.format)]
    return digest([*reading, *(s.digest.encode() for s in probe_set.sources)]).hex()[:16]


def _remove_stale_duplicates(probe_set: ProbeSet, folder: Path) -> None:
    for path in folder.glob(f"{probe_set.name}.{'[0-9a-f]' * 16}.duplicates.parquet"):
        if path != probe_set.duplicates:
            path.unlink(missing_ok=True)


def _refuse_another_set(probe_set: ProbeSet, folder: Path) -> None:
    """A name taken by other files is an error: their partitions would be replaced without a word."""
    if not (folder / f"{probe_set.name}.json").exists():
        return
    registered = load_probe_set(folder, probe_set.name)
    same_content = _content_digest(registered) == _content_digest(probe_set)
    if not (registered.root == probe_set.root or same_content):
        raise ConfigurationError(
            f"a probe set {probe_set.name!r} is registered already, from {registered.root}; "
            f"this one is {probe_set.root}; give it another name with --name"
        )
