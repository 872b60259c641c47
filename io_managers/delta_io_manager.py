"""The Dagster shell around the store: outputs to commits, tables to inputs.

Contract: an asset hands over what is to be written, never how. A partitioned asset returns `StageWrites` or
`VectorWrites`; `engine` and `engine_validation_report` return their record; anything else is refused. Every partition
of the run is written exactly once, in its own commit, its refusals before its rows. What the lineage check needs is
read from the store. A failure is a `dagster.Failure` without a retry; that of a vector stream comes out as itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import Field

from io_managers import layout, tables
from io_managers.delta_table import Committed, PartitionWrite, kept_partition, write_partition
from io_managers.errors import LineageError, StoreError
from io_managers.open_tables import table_path
from io_managers.reading import StoredPartitions, latest_verdict, read_engine
from io_managers.stored_rows import data_files
from io_managers.tables import TableSpec
from io_managers.vector_store import write_vectors
from resources.records import EngineRecord, EngineVerdict, Refusal, VectorStream, digest

_SPECS = {spec.name: spec for spec in tables.ALL} | {
    "engine": tables.ENGINES,
    "engine_validation_report": tables.ENGINE_VALIDATION_REPORTS,
}
"""The table of each asset, by the asset's key."""


@dataclass(frozen=True, kw_only=True)
class StageWrite:
    """One partition of a table: its rows, and the probes that this stage refused."""

    part: str
    stage: str
    content_digest: bytes
    """16 bytes; equal digests are the same content."""
    n_rows: int
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """Gives the rows in the table's schema; called at most once."""
    refusals: Sequence[Refusal] = ()
    scope: Mapping[str, str] = field(default_factory=dict)
    """What the write replaces besides `part`, for a table that has more than one partition column."""
    describe: Callable[[Committed], Mapping[str, Any]]
    """The Dagster metadata of the partition, once it is stored."""
    made_of: bytes | None = None
    """8 or 16 bytes that identify everything the rows depend on, the code that makes them included."""


@dataclass(frozen=True, kw_only=True)
class StageIfChanged:
    """One partition of a table, whose rows are made only where what is stored was made of something else."""

    part: str
    made_of: bytes
    """As of a `StageWrite`."""
    write: Callable[[], StageWrite]
    """Called at most once."""
    describe_kept: Callable[[Committed], Mapping[str, Any]]
    """The Dagster metadata of the partition, where what is stored is kept."""


@dataclass(frozen=True)
class StageWrites:
    """What a partitioned asset returns: one write for each partition key of the run, made when pulled."""

    writes: Iterable[StageWrite | StageIfChanged]

    def __iter__(self) -> Iterator[StageWrite | StageIfChanged]:
        return iter(self.writes)


@dataclass(frozen=True, kw_only=True)
class VectorWrite:
    """One partition of vectors."""

    stream: VectorStream
    describe: Callable[[Committed], Mapping[str, Any]]
    """The Dagster metadata of the partition, once it is stored."""

    @property
    def part(self) -> str:
        return self.stream.part


@dataclass(frozen=True)
class VectorWrites:
    """What the asset of vectors returns: one `VectorWrite` for each partition key of the run, made when pulled."""

    writes: Iterable[VectorWrite]

    def __iter__(self) -> Iterator[VectorWrite]:
        return iter(self.writes)


class DeltaIOManager(dg.ConfigurableIOManager):
    """Keeps every asset of this project in the lake."""

    lake: str | None = Field(
        default=None,
        description="The folder of Delta tables, or an object store's URL; unset: as FABRIC_LAKE or FABRIC_HOME say.",
    )

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Stores what an asset returned. Raises `dagster.Failure` where the store or the lineage check refuses it."""
        spec = _spec(context.asset_key)
        try:
            match obj:
                case StageWrites() | VectorWrites() if "part" in spec.replaces:
                    with closing(_each_once(context, obj.writes)) as writes:
                        kept = 0
                        for write in writes:
                            committed, metadata = self._store(context, spec, write)
                            kept += committed.skipped
                            # What is added to the output would be copied onto every partition of a range.
                            context.step_context.add_asset_metadata(
                                metadata, asset_key=context.asset_key, partition_key=write.part
                            )
                    if kept:
                        context.log.info(f"{spec.name}: {kept:,} partitions were stored already")
                case EngineRecord() if spec == tables.ENGINES:
                    self._store_row(context, spec, _engine_row(obj), stamp="built_at")
                case EngineVerdict() if spec == tables.ENGINE_VALIDATION_REPORTS:
                    self._store_row(context, spec, _verdict_row(obj), stamp="validated_at")
                case _:
                    raise _unexpected(context.asset_key, spec, obj)
        except LineageError as error:
            evidence = {"clause": error.clause, "seen": error.seen, "expected": error.expected, "advice": error.advice}
            raise dg.Failure(description=str(error), metadata=evidence, allow_retries=False) from error
        except StoreError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error

    def load_input(self, context: dg.InputContext) -> StoredPartitions | EngineRecord | EngineVerdict:
        """A partitioned table's partitions, in the order of their definition; an engine or its newest verdict.

        The engine is the one that this run built, if it built one, else the newest.
        """
        spec = _spec(context.asset_key)
        try:
            if spec not in (tables.ENGINES, tables.ENGINE_VALIDATION_REPORTS):
                return StoredPartitions(self._lake, _ordered_keys(context))
            engine = read_engine(self._lake, run_id=_run_id(context))
            if spec == tables.ENGINES:
                return engine
            if (verdict := latest_verdict(self._lake, engine.engine_id)) is None:
                raise StoreError(f"engine {engine.engine_id} was never validated; materialise engine_validation_report")
            return verdict
        except StoreError as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error

    @property
    def _lake(self) -> Path | str:
        return layout.lake_path() if self.lake is None else self.lake

    def _store(
        self, context: dg.OutputContext, spec: TableSpec, write: StageWrite | StageIfChanged | VectorWrite
    ) -> tuple[Committed, Mapping[str, Any]]:
        """Stores one partition; returns its metadata too."""
        match write:
            case StageIfChanged() if not spec.per_model:
                kept = kept_partition(self._lake, spec, {"part": write.part}, write.made_of)
                if kept is not None:
                    return kept, write.describe_kept(kept)
                return self._store_stage(context, spec, write.write(), write.made_of)
            case StageWrite() if not spec.per_model:
                return self._store_stage(context, spec, write, write.made_of)
            case VectorWrite() if spec.per_model:
                committed = write_vectors(self._lake, write.stream, metadata=_provenance(context))
                return _logged(context, spec, committed, write.part), write.describe(committed)
            case _:
                raise _unexpected(context.asset_key, spec, write)

    def _store_stage(
        self, context: dg.OutputContext, spec: TableSpec, write: StageWrite, made_of: bytes | None
    ) -> tuple[Committed, Mapping[str, Any]]:
        self._store_refusals(context, write)
        committed = self._write(
            context,
            spec,
            PartitionWrite(
                scope={"part": write.part, **write.scope},
                content_digest=write.content_digest,
                n_rows=write.n_rows,
                batches=write.batches,
                metadata=_provenance(context),
                made_of=made_of,
            ),
        )
        return committed, write.describe(committed)

    def _store_refusals(self, context: dg.OutputContext, write: StageWrite) -> None:
        spec = tables.REFUSED_PROBES
        scope = {"part": write.part, "stage": write.stage}
        if strangers := {(r.part, r.stage) for r in write.refusals} - {(write.part, write.stage)}:
            raise StoreError(
                f"stage {write.stage} of {write.part} refuses probes of {sorted(strangers)}; expected its own; "
                "give a refusal to the stage and the partition that it names"
            )
        if not write.refusals and not data_files(self._lake, spec, scope):
            return
        rows = [asdict(refusal) for refusal in write.refusals]
        self._write(
            context,
            spec,
            PartitionWrite(
                scope=scope,
                content_digest=digest(json.dumps(row, sort_keys=True).encode() for row in rows),
                n_rows=len(rows),
                batches=lambda: iter([pa.RecordBatch.from_pylist(rows, schema=spec.schema)]),
                metadata=_provenance(context),
            ),
        )

    def _store_row(self, context: dg.OutputContext, spec: TableSpec, row: dict[str, Any], *, stamp: str) -> None:
        row = row | {"run_id": context.run_id}
        stamped = row | {stamp: datetime.now(UTC)}
        committed = self._write(
            context,
            spec,
            PartitionWrite(
                scope={column: row[column] for column in spec.replaces},
                content_digest=digest([json.dumps(row, sort_keys=True).encode()]),
                n_rows=1,
                batches=lambda: iter([pa.RecordBatch.from_pylist([stamped], schema=spec.schema)]),
                metadata=_provenance(context),
            ),
        )
        context.add_output_metadata(
            {"dagster/uri": str(table_path(self._lake, spec)), "delta_version": committed.version}
        )

    def _write(self, context: dg.OutputContext, spec: TableSpec, write: PartitionWrite) -> Committed:
        committed = write_partition(self._lake, spec, write)
        return _logged(context, spec, committed, "/".join(write.scope.values()))


def _spec(key: dg.AssetKey) -> TableSpec:
    name = key.to_user_string()
    if name not in _SPECS:
        raise dg.Failure(
            description=f"asset {name} has no table in the lake; expected one of {sorted(_SPECS)}; "
            "add its TableSpec to io_managers.tables or give it another IO manager",
            allow_retries=False,
        )
    return _SPECS[name]


def _unexpected(key: dg.AssetKey, spec: TableSpec, seen: object) -> StoreError:
    return StoreError(
        f"asset {key.to_user_string()} gave {type(seen).__name__} for the table {spec.name}; expected VectorWrites of "
        "VectorWrite for hidden_states, EngineRecord for engine, EngineVerdict for engine_validation_report, and "
        "StageWrites of StageWrite or StageIfChanged for any other; return that"
    )


def _each_once(
    context: dg.OutputContext, writes: Iterable[StageWrite | StageIfChanged | VectorWrite]
) -> Generator[StageWrite | StageIfChanged | VectorWrite, None, None]:
    """The writes, if there is exactly one for each partition of the run."""
    name = context.asset_key.to_user_string()
    expected = sorted(context.asset_partition_keys) if context.has_asset_partitions else []
    left = set(expected)
    pulled = iter(writes)
    try:
        for write in pulled:
            if write.part not in left:
                raise StoreError(
                    f"asset {name} wrote partition {write.part!r}, which is written already or not in this run; "
                    f"expected each of {expected} once; mend the asset"
                )
            left.remove(write.part)
            yield write
    finally:
        # A generator may hold files and engines open.
        if isinstance(pulled, Generator):
            pulled.close()
    if left:
        raise StoreError(
            f"asset {name} wrote nothing for {sorted(left)}; expected one write for each partition; mend the asset"
        )


def _logged(context: dg.OutputContext, spec: TableSpec, committed: Committed, partition: str) -> Committed:
    # A line is a transaction of the run's database; a re-run of what has not changed writes none for each partition.
    if not committed.skipped:
        context.log.info(f"{spec.name} {partition}: {committed.rows:,} rows stored, version {committed.version}")
    return committed


def _ordered_keys(context: dg.InputContext) -> tuple[str, ...]:
    """The partition keys in the order of their definition; Dagster gives them in the order of a set."""
    keys = set(context.asset_partition_keys)
    defined = context.asset_partitions_def.get_partition_keys(dynamic_partitions_store=context.instance)
    return tuple(key for key in defined if key in keys)


def _run_id(context: dg.InputContext) -> str | None:
    """The run that loads the input; None outside of one."""
    try:
        return context.step_context.run_id
    except dg.DagsterInvariantViolationError:
        return None


def _provenance(context: dg.OutputContext) -> dict[str, str]:
    return {"run_id": context.run_id, "asset": context.asset_key.to_user_string(), "dagster": dg.__version__}


def _engine_row(engine: EngineRecord) -> dict[str, Any]:
    row = asdict(engine)
    limits = row.pop("limits")
    return {**row, **limits, "versions": json.dumps(row["versions"], sort_keys=True)}


def _verdict_row(verdict: EngineVerdict) -> dict[str, Any]:
    row = asdict(verdict)
    evidence = row.pop("evidence_json")
    return {**row, "evidence": evidence}
