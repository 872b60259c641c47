"""Which content every partition of a table has, without opening a file of rows: the table's transaction versions.

Contract: of the newest committed version, read from Delta's log: the last checkpoint's rows of transactions, then the
log entries after it. delta-rs gives one transaction at a time, at some 1 ms each. Nothing is written; no Dagster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from io_managers.delta_table import MADE_OF, WITHDRAWN, StoreError, content_version, open_table, table_path
from io_managers.places import Place, source
from io_managers.tables import TableSpec


@dataclass(frozen=True)
class Contents:
    """Of a table that is partitioned by `part` alone: what each partition's rows are, and what they were made of."""

    content: Mapping[str, int]
    """By partition, `delta_table.content_version` of what was last committed; without those that were withdrawn."""
    made_of: Mapping[str, int]
    """By partition, `delta_table.made_of_version` of what was given with it; withdrawn ones may be among them."""


def stored_contents(lake: Path | str, spec: TableSpec, *, model_key: str | None = None) -> Contents:
    """The contents of every partition; empty where there is no such table. Raises `StoreError`."""
    content: dict[str, int] = {}
    made_of: dict[str, int] = {}
    gone = content_version(WITHDRAWN)
    for app, version in _transactions(table_path(lake, spec, model_key)).items():
        name, _, part = app.partition("/")
        if name != spec.name:
            continue
        if part.endswith(MADE_OF):
            made_of[part.removesuffix(MADE_OF)] = version
        elif version != gone:
            content[part] = version
    return Contents(content, made_of)


def _transactions(path: Place) -> dict[str, int]:
    table = open_table(path)
    if table is None:
        return {}
    log = path / "_delta_log"
    try:
        first, found = _checkpoint(log)
        for version in range(first, table.version() + 1):
            found.update(_of_entry(log / f"{version:020d}.json"))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise StoreError(f"the log of {path} cannot be read ({error}); check the disk") from error
    return found


def _checkpoint(log: Place) -> tuple[int, dict[str, int]]:
    """The first version that the newest checkpoint does not cover, and the transactions in it."""
    try:
        version = int(json.loads((log / "_last_checkpoint").read_text())["version"])
    except FileNotFoundError:
        return 0, {}
    rows = (
        pq.read_table(source(log / f"{version:020d}.checkpoint.parquet"), columns=["txn"])["txn"]
        .drop_null()
        .to_pylist()
    )
    return version + 1, {row["appId"]: row["version"] for row in rows}


def _of_entry(entry: Place) -> Iterator[tuple[str, int]]:
    for line in entry.read_text().splitlines():
        if txn := json.loads(line).get("txn"):
            yield txn["appId"], txn["version"]
