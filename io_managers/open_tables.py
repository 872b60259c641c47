"""Where a table lies, and what it holds: opened once a version, since a partition's stage looks at each table some ten
times and opening replays the table's log.

Contract: what is given is the newest committed version. It is for reading: who commits opens a table of its own, since
a commit moves the object that makes it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from io_managers.data_files import DataFile
from io_managers.errors import StoreError
from io_managers.places import Place, place
from io_managers.tables import TableSpec
from resources.records import PART_KEY

MOST_HELD = 32


@dataclass(frozen=True)
class _Held:
    table: DeltaTable
    version: int
    entry: tuple[int | str, int]
    """Identity of the log entry of that version: a table that was made anew has another."""


_lock = threading.Lock()
_held: dict[Place, _Held] = {}


def table_path(lake: Path | str, spec: TableSpec, model_key: str | None = None) -> Place:
    """The place of a table; `model_key` is needed for, and only for, a table that is per model."""
    if "://" in str(lake) and not str(lake).startswith("s3://"):
        raise StoreError(f"the lake is {lake}; expected a folder or s3://bucket/prefix; give one of those")
    if spec.per_model != (model_key is not None):
        raise StoreError(
            f"table {spec.name} was asked for with model_key {model_key!r}; "
            f"expected {'one' if spec.per_model else 'none'}, since it is {'' if spec.per_model else 'not '}per model"
        )
    table = place(lake) / spec.name
    return table if model_key is None else table / require_key("model_key", model_key)


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


def stored_files(table: DeltaTable, scope: Mapping[str, str]) -> list[DataFile]:
    """The files of a partition in the order of their rows; of the whole table for an empty scope."""
    actions = pa.table(table.get_add_actions(flatten=True))
    for column, value in scope.items():
        actions = actions.filter(pc.equal(actions[f"partition.{column}"], value))
    columns = (actions[name].to_pylist() for name in ("path", "num_records", "size_bytes"))
    return sorted((DataFile(*row) for row in zip(*columns, strict=True)), key=lambda file: file.path)


def require_key(name: str, value: str) -> str:
    """`value`, if it may be a folder's name and a partition's."""
    if PART_KEY.fullmatch(value):
        return value
    raise StoreError(f"{name} is {value!r}; expected to match {PART_KEY.pattern}; rename it")


def _entry(path: Place, version: int) -> tuple[int | str, int] | None:
    try:
        found = (path / "_delta_log" / f"{version:020d}.json").stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
