"""A folder of probe files, local or in an object store, watched by listing it. No Dagster.

Contract: an entry is a file with an ending that probe files have, or a folder of such files, directly below the watched
one; names that begin with `.` or `_` are passed over. An entry is taken when two listings in a row show the same: one
that is still being written is not. One that was taken is taken again when it changed. What is gone is not withdrawn,
since a store that cannot be reached looks the same; it is told.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from resources.errors import ConfigurationError
from resources.probe_files import ProbeFormat
from resources.probe_files.register import ENDINGS, SHARD_ROWS
from resources.records import digest

FORMAT_FILE = "_format.json"
"""How the folder's files are read: the fields of `ProbeFormat`, and shard_rows. Optional."""


@dataclass(frozen=True)
class Entry:
    """A file, or a folder of files, that is a probe set."""

    name: str
    """Relative to the watched folder."""
    fingerprint: str
    """Of the names, sizes and modification times of its files, and of the format file."""


@dataclass(frozen=True)
class Cursor:
    """What was seen at the last listing, by name: fingerprints of entries that were taken, and of those that wait."""

    taken: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_json(text: str | None) -> Cursor:
        """Of what `to_json` gave; an empty one of None."""
        return Cursor(**json.loads(text)) if text else Cursor()

    def to_json(self) -> str:
        return json.dumps({"taken": dict(self.taken), "waiting": dict(self.waiting)}, sort_keys=True)


@dataclass(frozen=True)
class Step:
    """What one listing comes to."""

    settled: tuple[Entry, ...]
    """To be taken now."""
    waiting: tuple[str, ...]
    gone: tuple[str, ...]
    cursor: Cursor


def list_entries(root: str) -> list[Entry]:
    """The entries of a folder, given by its path or address, sorted by name. Raises `ConfigurationError`."""
    store, base = _opened(root)
    try:
        found = store.get_file_info(fs.FileSelector(base, recursive=True))
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(
            f"{root} cannot be listed: {error}; correct FABRIC_WATCH, or make it readable"
        ) from error
    form = b""
    files: dict[str, list[bytes]] = {}
    for info in found:
        relative = PurePosixPath(info.path).relative_to(base)
        stamp = f"{relative} {info.size} {info.mtime_ns}".encode()
        if str(relative) == FORMAT_FILE:
            form = stamp
        elif info.type == fs.FileType.File and _is_probe_file(relative):
            files.setdefault(relative.parts[0], []).append(stamp)
    return [Entry(name, digest([form, *sorted(stamps)]).hex()) for name, stamps in sorted(files.items())]


def next_step(cursor: Cursor, entries: list[Entry]) -> Step:
    """Compares a listing with the one before."""
    changed = [entry for entry in entries if cursor.taken.get(entry.name) != entry.fingerprint]
    settled = tuple(e for e in changed if cursor.waiting.get(e.name) == e.fingerprint)
    waiting = {e.name: e.fingerprint for e in changed if e not in settled}
    names = {entry.name for entry in entries}
    taken = {name: fingerprint for name, fingerprint in cursor.taken.items() if name in names}
    taken |= {entry.name: entry.fingerprint for entry in settled}
    gone = tuple(name for name in cursor.taken if name not in names)
    return Step(settled, tuple(waiting), gone, Cursor(taken, waiting))


def local_path(root: str, name: str, incoming: Path) -> Path:
    """Where an entry lies on this machine; one of an object store is copied into the folder `incoming` first."""
    store, base = _opened(root)
    if isinstance(store, fs.LocalFileSystem):
        return Path(base) / name
    target = incoming / name
    partial = incoming / f".{name}.{os.getpid()}"
    incoming.mkdir(parents=True, exist_ok=True)
    try:
        source = f"{base}/{name}"
        if store.get_file_info(source).type == fs.FileType.Directory:
            partial.mkdir()
        fs.copy_files(source, str(partial), source_filesystem=store, destination_filesystem=fs.LocalFileSystem())
        _remove(target)
        os.replace(partial, target)
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"{name} of {root} cannot be copied: {error}; try again") from error
    finally:
        _remove(partial)
    return target


def read_format(root: str) -> tuple[ProbeFormat, int]:
    """How the folder's files are read and how many rows a shard has, as `FORMAT_FILE` says or by default."""
    store, base = _opened(root)
    path = f"{base}/{FORMAT_FILE}"
    if store.get_file_info(path).type == fs.FileType.NotFound:
        return ProbeFormat(), SHARD_ROWS
    try:
        with store.open_input_stream(path) as stream:
            given: dict[str, Any] = json.loads(stream.read())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}; expected a JSON object") from error
    known = {f.name for f in fields(ProbeFormat)} | {"shard_rows"}
    if not isinstance(given, dict) or given.keys() - known:
        raise ConfigurationError(f"{path} holds {given!r:.200}; expected an object with some of {sorted(known)}")
    shard_rows = given.pop("shard_rows", SHARD_ROWS)
    if type(shard_rows) is not int or shard_rows < 1:
        raise ConfigurationError(f"{path}: shard_rows is {shard_rows!r}; expected a whole number of at least 1")
    return ProbeFormat(**given), shard_rows


def _opened(root: str) -> tuple[fs.FileSystem, str]:
    """The file system and the folder's path in it. A path without a scheme is one of this machine."""
    try:
        store, base = fs.FileSystem.from_uri(root if "://" in root else Path(root).expanduser().absolute().as_uri())
        kind = store.get_file_info(base).type
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"FABRIC_WATCH is {root}: {error}; give a folder's path or address") from error
    if kind != fs.FileType.Directory:
        raise ConfigurationError(f"FABRIC_WATCH is {root}, which is no folder that is there; make it, or name another")
    return store, base.rstrip("/")


def _is_probe_file(relative: PurePosixPath) -> bool:
    return relative.suffix.lower() in ENDINGS and not any(part[0] in "._" for part in relative.parts)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
