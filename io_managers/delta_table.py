"""The write protocol of the lake: one partition replaced in one commit, idempotent, atomic and durable.

Contract of `write_partition`, in this order: the partition's transaction version is read; if it is the content's, what
is stored is verified, every file by its hash (some 5 GB/s), and nothing is written. Else, or where a file is damaged,
the rows are written to files of this write's own, counted inside the stream, made durable, and only then referred to by
one commit that replaces the partition. The commit is a compare-and-swap on the table's version and is tried again with
the same files: rows are pulled at most once. It is verified in the same way, and its log entry made durable, before the
call returns. An exception of the rows' source surfaces as itself; the table is then as it was.

The files are written here and not by delta-rs, whose writer changes the order of rows (its plan spreads batches over
threads; seen with deltalake 1.6.6 and 2 million rows), never fsyncs and turns an exception of the source into a
`DeltaError`. What it would have checked is checked here: schema, nulls, and that every row belongs to the partition.

A lake is a folder of a local file system or a prefix of an object store with conditional puts. No Dagster.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from io_managers.contents import MADE_OF, content_version, made_of_version, require_scope, transaction_name
from io_managers.data_files import UNFINISHED, DataFile, damage, remove_files, write_files
from io_managers.errors import StoreError
from io_managers.open_tables import open_table, stored_files, table_path
from io_managers.places import Place
from io_managers.tables import TableSpec
from resources.durable import sync_file, sync_folders

COMMIT_PATIENCE_S = 60.0
"""How long a commit goes on losing races to commits of other partitions before it gives up."""

LOG_TAIL = 16
"""How many of the newest log files are fsynced. Every acknowledged commit made those before it durable, so what is left
are the entries of writers that were killed since the last one."""


@dataclass(frozen=True)
class PartitionWrite:
    """The new rows of one partition."""

    scope: Mapping[str, str]
    """The value of every column of the spec's `replaces`."""
    content_digest: bytes
    """16 bytes that identify the rows; equal digests are the same content, which is not written twice."""
    n_rows: int
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """Gives the rows, each batch of the spec's schema; called at most once, and not at all for what is stored."""
    metadata: Mapping[str, str]
    """Goes into the commit: the run's id, versions."""
    made_of: bytes | None = None
    """8 or 16 bytes that identify what the rows were made of; committed with them, also when they stay the same."""


@dataclass(frozen=True)
class Committed:
    """What is now stored. `version` is the table's; `skipped` says that this content was there already."""

    version: int
    rows: int
    bytes: int
    skipped: bool


def kept_partition(
    lake: Path | str, spec: TableSpec, scope: Mapping[str, str], made_of: bytes, *, model_key: str | None = None
) -> Committed | None:
    """What is stored of a partition, if it was made of `made_of` and every file of it still has its hash; else None."""
    path = table_path(lake, spec, model_key)
    app = transaction_name(spec, require_scope(spec, scope))
    table = open_table(path)
    if table is None or table.transaction_version(app + MADE_OF) != made_of_version(made_of):
        return None
    files = stored_files(table, scope)
    rows = sum(file.rows for file in files)
    if _fault(path, files, rows, before=True) is not None:
        return None
    return Committed(table.version(), rows, sum(file.bytes for file in files), skipped=True)


def write_partition(
    lake: Path | str, spec: TableSpec, write: PartitionWrite, *, model_key: str | None = None
) -> Committed:
    """Replaces one partition. Raises `StoreError`, or whatever the rows' source raised."""
    path = table_path(lake, spec, model_key)
    scope = require_scope(spec, write.scope)
    version = content_version(write.content_digest)
    table = _open_or_create(path, spec)
    before = table.transaction_version(transaction_name(spec, scope))
    if before == version:
        files = stored_files(table, scope)
        if _fault(path, files, write.n_rows, before=True) is None:
            version_now = _remember_made_of(path, spec, scope, write, table)
            _make_durable(path, files)
            return Committed(version_now, write.n_rows, sum(f.bytes for f in files), skipped=True)
    schema = pa.schema([f for f in spec.schema if f.name not in spec.replaces])
    folder = "/".join(f"{column}={value}" for column, value in scope.items())
    rows = (batch.select(schema.names) for batch in _checked(spec, scope, write))
    files = write_files(path, folder, schema, rows)
    return _commit(path, spec, scope, write, before, files)


def janitor(path: Path | str, older_than_s: float = 86400) -> int:
    """Removes what killed writers left under a table or lake and no vacuum finds; returns how many files it removed.

    These are this module's unfinished files, and delta-rs's staged log entries `N.json#1`, which object_store hides.
    """
    limit = time.time() - older_than_s
    removed = 0
    for file in Path(path).rglob("*"):
        if not (file.name.endswith(UNFINISHED) or re.search(r"#\d+$", file.name)):
            continue
        try:
            if file.is_file() and file.stat().st_mtime < limit:
                file.unlink()
                removed += 1
        except FileNotFoundError:
            continue
    return removed


def _open_or_create(path: Place, spec: TableSpec) -> DeltaTable:
    table = open_table(path)
    if table is None:
        path.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            str(path),
            Schema.from_arrow(spec.schema),
            mode="ignore",
            partition_by=list(spec.replaces),
            configuration={
                "delta.dataSkippingNumIndexedCols": "0",
                "delta.checkpointInterval": "100",
                "delta.logRetentionDuration": "interval 3650 days",
                "delta.deletedFileRetentionDuration": "interval 7 days",
            },
        )
        table = DeltaTable(path)
    table = _with_new_columns(table, spec)
    stored, partitions = pa.schema(table.schema().to_arrow()), tuple(table.metadata().partition_columns)
    if not stored.equals(spec.schema) or partitions != spec.replaces:
        raise StoreError(
            f"table {path} has the columns\n{stored}\npartitioned by {partitions}; this version of the project writes\n"
            f"{spec.schema}\npartitioned by {spec.replaces}; move that folder away and materialise again"
        )
    return table


def _with_new_columns(table: DeltaTable, spec: TableSpec) -> DeltaTable:
    """A table that an older version of this project made gets the columns that came since, where they may be null."""
    stored = pa.schema(table.schema().to_arrow())
    new = list(spec.schema)[len(stored) :]
    older = stored.equals(pa.schema(list(spec.schema)[: len(stored)]))
    if not (new and older and all(field.nullable for field in new)):
        return table
    with suppress(CommitFailedError):  # another writer adds them just now
        table.alter.add_columns(Schema.from_arrow(pa.schema(new)).fields)
    return DeltaTable(table.table_uri)


def _checked(spec: TableSpec, scope: Mapping[str, str], write: PartitionWrite) -> Iterator[pa.RecordBatch]:
    """The rows, each batch checked; the last one is given only if they are as many as promised."""
    rows = 0
    for batch in write.batches():
        if not batch.schema.equals(spec.schema):
            raise StoreError(
                f"rows for {spec.name} have the columns\n{batch.schema}\nexpected\n{spec.schema}\nmend the "
                "stage that made them"
            )
        for field, column in zip(spec.schema, batch.columns, strict=True):
            elements = column.flatten().null_count if pa.types.is_list(field.type) else 0
            if elements or (column.null_count and not field.nullable):
                raise StoreError(f"{spec.name}.{field.name} has nulls; expected none; mend the stage that made it")
        for name, value in scope.items():
            if pc.any(pc.not_equal(batch[name], value)).as_py():
                raise StoreError(
                    f"{spec.name}.{name} has values other than {value!r} in a write of that partition; mend the "
                    "stage that made it"
                )
        rows += batch.num_rows
        if rows > write.n_rows:
            break
        yield batch
    if rows != write.n_rows:
        more = "or more " if rows > write.n_rows else ""
        raise StoreError(
            f"{transaction_name(spec, scope)} got {rows} rows {more}from its stage; expected {write.n_rows}; "
            "nothing was stored; materialise the partition again, its upstream first"
        )


def _commit(
    path: Place,
    spec: TableSpec,
    scope: dict[str, str],
    write: PartitionWrite,
    before: int | None,
    files: list[DataFile],
) -> Committed:
    app, version = transaction_name(spec, scope), content_version(write.content_digest)
    deadline = time.monotonic() + COMMIT_PATIENCE_S
    while True:
        table = DeltaTable(path)
        stored = stored_files(table, scope)
        # A commit may have gone through although its answer was an error.
        ours = bool(files) and stored == files
        if not ours and table.transaction_version(app) != before:
            remove_files(path, files)
            return _lost_race(path, table, app, version, write, stored)
        if ours:
            return _acknowledge(path, table, app, write, stored, skipped=False)
        metadata = {
            **write.metadata,
            **scope,
            "content_digest": write.content_digest.hex(),
            "rows": str(write.n_rows),
            "deltalake": deltalake.__version__,
            "pyarrow": pa.__version__,
        }
        if conflict := _try_commit(table, spec, files, scope, metadata, _transactions(app, write)):
            try:
                _wait(conflict, path, app, deadline)
            except StoreError:
                remove_files(path, files)
                raise
            continue
        table = DeltaTable(path)
        return _acknowledge(path, table, app, write, stored_files(table, scope), skipped=False)


def _remember_made_of(
    path: Place, spec: TableSpec, scope: dict[str, str], write: PartitionWrite, table: DeltaTable
) -> int:
    """Commits what the stored rows are made of, unless the table knows it; returns the table's version."""
    [_, *made_of] = _transactions(transaction_name(spec, scope), write)
    deadline = time.monotonic() + COMMIT_PATIENCE_S
    while any(table.transaction_version(t.app_id) != t.version for t in made_of):
        table = DeltaTable(path)
        if conflict := _try_commit(table, spec, [], {}, {**write.metadata, **scope}, made_of):
            _wait(conflict, path, transaction_name(spec, scope), deadline)
        table = DeltaTable(path)
    return table.version()


def _transactions(app: str, write: PartitionWrite) -> list[Transaction]:
    """The content's, then that of what it is made of, if that is said."""
    made_of = [] if write.made_of is None else [Transaction(app + MADE_OF, made_of_version(write.made_of))]
    return [Transaction(app, content_version(write.content_digest)), *made_of]


def _try_commit(
    table: DeltaTable,
    spec: TableSpec,
    files: list[DataFile],
    replaced: Mapping[str, str],
    metadata: dict[str, str],
    transactions: list[Transaction],
) -> CommitFailedError | None:
    """One try at the table's next version: the partition `replaced` becomes `files`; with an empty scope every row
    stays. Gives the error back if another commit took that version."""
    try:
        table.create_write_transaction(
            [_add_action(file, replaced) for file in files],
            mode="overwrite" if replaced else "append",
            schema=Schema.from_arrow(spec.schema),
            partition_by=list(spec.replaces),
            partition_filters=[(column, "=", value) for column, value in replaced.items()] or None,
            commit_properties=CommitProperties(
                custom_metadata=metadata, max_commit_retries=0, app_transactions=transactions
            ),
        )
    except CommitFailedError as error:
        return error
    return None


def _wait(conflict: CommitFailedError, path: Place, app: str, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise StoreError(
            f"{app} lost the race to other commits of {path} for {COMMIT_PATIENCE_S:.0f} s ({conflict}); "
            "nothing was stored; start fewer runs at once, then materialise it again"
        ) from conflict
    time.sleep(random.uniform(0.005, 0.05))


def _lost_race(
    path: Place, table: DeltaTable, app: str, version: int, write: PartitionWrite, stored: list[DataFile]
) -> Committed:
    """Another writer committed this partition in the meantime: done if its content is the same, an error if not."""
    if table.transaction_version(app) == version:
        return _acknowledge(path, table, app, write, stored, skipped=True)
    raise StoreError(
        f"{app} was replaced with other content by another run while this one wrote it; nothing of this one was "
        "stored; run one at a time for a partition, then materialise it again"
    )


def _acknowledge(
    path: Place, table: DeltaTable, app: str, write: PartitionWrite, files: list[DataFile], *, skipped: bool
) -> Committed:
    if table.transaction_version(app) != content_version(write.content_digest):
        raise StoreError(f"{app} was replaced by another run right after this one stored it; run one at a time")
    if fault := _fault(path, files, write.n_rows):
        raise StoreError(f"{app} was committed, but {fault}; check the disk, then materialise it again")
    _make_durable(path, files)
    return Committed(table.version(), write.n_rows, sum(f.bytes for f in files), skipped)


def _add_action(file: DataFile, scope: Mapping[str, str]) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values=scope,
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _fault(path: Place, files: list[DataFile], n_rows: int, *, before: bool = False) -> str | None:
    """What is wrong with a partition's stored files, by their hashes: a disk can tear a file or flip its bits.

    Of an object store, what was stored `before` is judged by its size: it is a network away, and such stores check what
    they hold themselves.
    """
    rows = sum(file.rows for file in files)
    if rows != n_rows:
        return f"its files hold {rows} rows, expected {n_rows}"
    read = isinstance(path, Path) or not before
    return next((fault for file in files if (fault := damage(path, file, read=read))), None)


def _make_durable(path: Place, files: list[DataFile]) -> None:
    """Data first, then the log: an entry must never outlive the files that it names. delta-rs fsyncs nothing.

    An object store has made durable what it acknowledged.
    """
    if not isinstance(path, Path):
        return
    for file in files:
        sync_file(path / file.path)
        sync_folders((path / file.path).parent, path)
    log = path / "_delta_log"
    for name in sorted(os.listdir(log))[-LOG_TAIL:]:
        # Another writer's staged entry goes when it is linked to its name.
        with suppress(FileNotFoundError):
            sync_file(log / name)
    for folder in (log, path, path.parent, path.parent.parent):
        sync_file(folder)
