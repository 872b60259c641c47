"""Which content a partition has, without opening a file of rows: the version of its transaction in the table.

Contract: of the newest committed version. A content is 63 bits of the digest with which rows were committed, and so is
what they were made of. Those of all partitions at once are read from Delta's log: the last checkpoint's rows of
transactions, then the log entries after it; delta-rs gives one at a time, at some 1 ms each. Nothing is written; no
Dagster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from io_managers.errors import StoreError
from io_managers.open_tables import open_table, require_key, table_path
from io_managers.places import Place, source
from io_managers.tables import TableSpec
from resources.records import digest

MADE_OF = "@made_of"
"""Ends the name of the transaction that says what a partition's rows were made of; no partition key has an `@`."""

WITHDRAWN = digest([b"withdrawn"])
"""The content of a partition that was taken out of the lake, which is no content: one without a row has another."""


@dataclass(frozen=True)
class Contents:
    """Of a table that is partitioned by `part` alone: what each partition's rows are, and what they were made of."""

    content: Mapping[str, int]
    """By partition, `content_version` of what was last committed; without those that were withdrawn."""
    made_of: Mapping[str, int]
    """By partition, `made_of_version` of what was given with it; withdrawn ones may be among them."""


def stored_content(
    lake: Path | str, spec: TableSpec, scope: Mapping[str, str], *, model_key: str | None = None
) -> bytes | None:
    """8 bytes that identify the rows last committed to a partition; None if nothing ever was, or it was withdrawn.

    They are the partition's transaction version, 63 bits of the content digest: Delta keeps it in every checkpoint,
    where a commit's own metadata goes with its log entry.
    """
    table = open_table(table_path(lake, spec, model_key))
    version = None if table is None else table.transaction_version(transaction_name(spec, require_scope(spec, scope)))
    return None if version in (None, content_version(WITHDRAWN)) else version.to_bytes(8, "little")


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


def content_version(content: bytes) -> int:
    """63 bits of the digest, never 0. Delta's transaction versions are signed 64-bit."""
    if len(content) != 16:
        raise StoreError(f"a content digest has {len(content)} bytes; expected 16; use resources.records.digest")
    return int.from_bytes(content[:8], "little") >> 1 or 1


def made_of_version(made_of: bytes) -> int:
    """The same of what rows were made of; the 8 bytes that `stored_content` gives are a version as they are."""
    return int.from_bytes(made_of, "little") if len(made_of) == 8 else content_version(made_of)


def require_scope(spec: TableSpec, scope: Mapping[str, str]) -> dict[str, str]:
    """The scope in the table's column order. An empty value would make the whole table unreadable."""
    if set(scope) != set(spec.replaces) or not spec.replaces:
        raise StoreError(
            f"a write to {spec.name} names {sorted(scope)}; expected {sorted(spec.replaces)}; name what it replaces"
        )
    return {column: require_key(f"{spec.name}.{column}", scope[column]) for column in spec.replaces}


def transaction_name(spec: TableSpec, scope: Mapping[str, str]) -> str:
    """The id under which a partition's content is committed; with `MADE_OF` behind it, that of what it was made of."""
    return "/".join([spec.name, *scope.values()])


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
