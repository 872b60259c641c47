"""Tables -> records, numpy, polars and DuckDB.

Contract: nothing is written; what is read is the newest committed version of a table, and rows come in the order in
which they were stored. Large reads stream. No Dagster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from io_managers import layout
from io_managers.contents import stored_content, stored_contents
from io_managers.errors import StoreError
from io_managers.export import export_partition
from io_managers.open_tables import open_table, table_path
from io_managers.places import ObjectPath, place
from io_managers.stored_rows import partition_files, stored_batches, stored_records
from io_managers.tables import (
    ALL,
    ENGINE_VALIDATION_REPORTS,
    ENGINES,
    EXTRACTION_REQUESTS,
    HIDDEN_STATES,
    PROBE_SETS,
    REFUSED_PROBES,
    TOKENISED_BATCHES,
    WORK_ITEMS,
    TableSpec,
)
from io_managers.vectors import default_model_key, iter_hidden_states, read_hidden_states
from io_managers.work_item_rows import WorkItemRows, work_item_rows
from resources.records import (
    EngineRecord,
    EngineVerdict,
    ExtractionRequest,
    Limits,
    Refusal,
    WorkItem,
    WorkItemManifest,
)

__all__ = [
    "StoredPartitions",
    "connect",
    "export_partition",
    "find_engine",
    "iter_hidden_states",
    "latest_verdict",
    "read_engine",
    "read_hidden_states",
    "stale_partitions",
]


@dataclass(frozen=True)
class StoredPartitions:
    """Partitions of the lake, as an asset is given its partitioned input; each method reads one of them when called."""

    lake: Path | str
    parts: tuple[str, ...]

    def probes(self, part: str) -> Iterator[pa.RecordBatch]:
        """The probes, in the columns of `tables.PROBE_SETS`."""
        return stored_batches(self.lake, PROBE_SETS, {"part": part})

    def probes_digest(self, part: str) -> bytes:
        """`contents.stored_content` of the probes; ask for it before they are read. Raises `StoreError` if none."""
        if (digest := stored_content(self.lake, PROBE_SETS, {"part": part})) is not None:
            return digest
        raise StoreError(f"probe_sets of {part} was never materialised; materialise it, then what is after it")

    def manifest(self, part: str) -> list[WorkItemManifest]:
        """The work items in order."""
        rows = stored_records(self.lake, WORK_ITEMS, {"part": part})
        return [WorkItemManifest(**_sharing(row, "part", "tokenizer_id")) for row in rows]

    def work_item_rows(self, part: str) -> Iterator[WorkItemRows]:
        """The work items in order, as columns. Raises `StoreError` for rows out of order."""
        return work_item_rows(part, stored_batches(self.lake, TOKENISED_BATCHES, {"part": part}))

    def work_items(self, part: str) -> Iterator[WorkItem]:
        """The work items in order; memory is about one of them. Raises `StoreError` for rows out of order."""
        return (rows.work_item() for rows in self.work_item_rows(part))

    def requests(self, part: str, engine_id: str) -> dict[str, ExtractionRequest]:
        """What was asked of an engine, by work item id."""
        return {request.work_item_id: request for request in self.iter_requests(part, engine_id)}

    def iter_requests(self, part: str, engine_id: str) -> Iterator[ExtractionRequest]:
        """What was asked of an engine, in the order in which it was stored."""
        equal = ("part", "engine_id", "model_key", "tap", "position_rule", "dtype", "byte_order")
        for row in stored_records(self.lake, EXTRACTION_REQUESTS, {"part": part, "engine_id": engine_id}):
            yield ExtractionRequest(**_sharing(row, *equal))

    def refusals(self, part: str, stage: str | None = None) -> list[Refusal]:
        """The refused probes of one stage, or of all."""
        scope = {"part": part} if stage is None else {"part": part, "stage": stage}
        return [Refusal(**row) for row in stored_records(self.lake, REFUSED_PROBES, scope)]

    def versions(self) -> dict[str, int]:
        """The Delta version of every table that an extraction reads: information, never part of an identity."""
        tables = {s.name: open_table(table_path(self.lake, s)) for s in ALL if not s.per_model}
        return {name: table.version() for name, table in tables.items() if table is not None}


def read_engine(lake: Path | str, *, engine_id: str | None = None, run_id: str | None = None) -> EngineRecord:
    """As `find_engine`; raises `StoreError` where there is none."""
    if (engine := find_engine(lake, engine_id=engine_id, run_id=run_id)) is not None:
        return engine
    raise StoreError(
        f"the lake {lake} knows {'no engine' if engine_id is None else f'no engine {engine_id}'}; "
        "materialise engine and engine_validation_report"
    )


def find_engine(lake: Path | str, *, engine_id: str | None = None, run_id: str | None = None) -> EngineRecord | None:
    """The engine named; else the newest one, of those that the run `run_id` built if it built any; None if none."""
    rows = list(stored_records(lake, ENGINES, {} if engine_id is None else {"engine_id": engine_id}))
    if not rows:
        return None
    newest = max([row for row in rows if row["run_id"] == run_id] or rows, key=lambda row: row["built_at"])
    names = {f.name for f in fields(EngineRecord)} - {"limits", "versions"}
    return EngineRecord(
        **{name: newest[name] for name in names},
        limits=Limits(**{f.name: newest[f.name] for f in fields(Limits)}),
        versions=json.loads(newest["versions"]),
    )


def latest_verdict(lake: Path | str, engine_id: str) -> EngineVerdict | None:
    """What the newest validation of an engine came to; None if it was never validated."""
    columns = ["report_id", "engine_id", "verdict", "validated_at"]
    heads = stored_records(lake, ENGINE_VALIDATION_REPORTS, {}, columns=columns)
    # Of two reports of one microsecond the refusal counts.
    newest = max(
        (row for row in heads if row["engine_id"] == engine_id),
        key=lambda row: (row["validated_at"], row["verdict"] != "proved"),
        default=None,
    )
    if newest is None:
        return None
    [row] = stored_records(lake, ENGINE_VALIDATION_REPORTS, {"report_id": newest["report_id"]})
    names = {f.name for f in fields(EngineVerdict)} - {"evidence_json"}
    return EngineVerdict(**{name: row[name] for name in names}, evidence_json=row["evidence"])


def connect(lake: Path | str | None = None, model_key: str | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with a view for each table of the lake as it is now; `hidden_states` is that of `model_key`.

    A partition whose probes were stored anew after its vectors is not in `hidden_states`, since a join would pair a
    new text with the vector of an old one; it is listed in `stale_partitions` until hidden_states is materialised.
    The views read the tables' Parquet files, since DuckDB 2 has no Delta extension that works offline. `model_key`
    defaults as in `read_hidden_states`; a table that does not exist yet is an empty view.
    """
    lake = layout.lake_path() if lake is None else lake
    where = place(lake)
    if model_key is None and (where / HIDDEN_STATES.name).is_dir():
        model_key = default_model_key(lake)
    connection = duckdb.connect()
    if isinstance(where, ObjectPath):
        connection.register_filesystem(where.filesystem())
    stale = [] if model_key is None else stale_partitions(lake, model_key)
    connection.register("stale_partitions", pa.table({"part": pa.array(stale, pa.string())}))
    for spec in ALL:
        absent = spec.per_model and model_key is None
        key = model_key if spec.per_model else None
        files = [] if absent else partition_files(lake, spec, model_key=key)
        if spec.per_model:
            left_out = {f"part={part}" for part in stale}
            files = [file for file in files if Path(file).parent.name not in left_out]
        if files:
            root = str(table_path(lake, spec, key))
            connection.execute(f"CREATE VIEW {spec.name} AS {_select(spec, root, files)}")
        else:
            connection.register(spec.name, spec.schema.empty_table())
    return connection


def stale_partitions(lake: Path | str, model_key: str) -> list[str]:
    """The partitions with vectors that were not made of the probes as they are stored now, sorted."""
    probes = stored_contents(lake, PROBE_SETS).content
    vectors = stored_contents(lake, HIDDEN_STATES, model_key=model_key)
    return sorted(part for part in vectors.content if vectors.made_of.get(part) != probes.get(part))


def _select(spec: TableSpec, root: str, files: list[str]) -> str:
    """The rows of a table as SQL. DuckDB reads a file only if its partition's values, which its path has, are wanted.

    DuckDB's own reading of such paths would take a folder `part=1` above the table for a partition.
    """
    below = f"substr(filename, {len(root) + 2})"
    values = {
        column: f"split_part(split_part({below}, '/', {level}), '=', 2)"
        for level, column in enumerate(spec.replaces, start=1)
    }
    columns = ", ".join(f"{values[name]} AS {name}" if name in values else name for name in spec.schema.names)
    paths = ", ".join("'" + path.replace("'", "''") + "'" for path in files)
    return f"SELECT {columns} FROM read_parquet([{paths}], hive_partitioning = false, filename = true)"


def _sharing(row: dict[str, Any], *columns: str) -> dict[str, Any]:
    """The row with one copy of each text that many rows share: a large partition has many thousand work items."""
    return row | {column: sys.intern(row[column]) for column in columns}
