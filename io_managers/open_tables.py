"""Tables opened once a version: a partition's stage looks at each some ten times, and opening replays the table's log.

Contract: what is given is the newest committed version. It is for reading: who commits opens a table of its own, since
a commit moves the object that makes it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from io_managers.places import Place

MOST_HELD = 32


@dataclass(frozen=True)
class _Held:
    table: DeltaTable
    version: int
    entry: tuple[int | str, int]
    """Identity of the log entry of that version: a table that was made anew has another."""


_lock = threading.Lock()
_held: dict[Place, _Held] = {}


def open_table(path: Place) -> DeltaTable | None:
    """The newest version of a table; None if there is no table yet."""
    with _lock:
        held = _held.get(path)
    if held is not None and _entry(path, held.version) == held.entry and _entry(path, held.version + 1) is None:
        return held.table
    if not (path / "_delta_log").is_dir():
        return None
    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        return None
    version = table.version()
    entry = _entry(path, version)
    with _lock:
        _held.pop(path, None)
        if entry is not None:
            _held[path] = _Held(table, version, entry)
        while len(_held) > MOST_HELD:
            del _held[next(iter(_held))]
    return table


def _entry(path: Place, version: int) -> tuple[int | str, int] | None:
    try:
        found = (path / "_delta_log" / f"{version:020d}.json").stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
