"""Asset `probe_sets`: the probes of a registered file, row by row, with the refused ones accounted for."""

from collections.abc import Iterator

import dagster as dg
import pyarrow as pa

from fabric_assets import reports
from fabric_assets.partitions import BACKFILL, each_part, probe_shards
from fabric_assets.upkeep.registered import registered_shard
from io_managers import layout
from io_managers.delta_io_manager import StageIfChanged, StageWrite, StageWrites
from io_managers.delta_table import Committed
from io_managers.reading import StoredPartitions
from io_managers.stored_ids import ids_to_replace, stored_ids, withdrawn
from io_managers.tables import PROBE_SETS
from resources.probe_files import ProbeSet, Shard, read_shard, survey_shard
from resources.probe_files.identity import shard_identity
from resources.records import Probe

ROWS_A_BATCH = 4096
CHARACTERS_A_BATCH = 16 << 20
STAGE = "probe_sets"


@dg.asset(
    partitions_def=probe_shards,
    backfill_policy=BACKFILL,
    io_manager_key="delta",
    group_name="inputs",
    kinds={"deltalake"},
    metadata=reports.table_definition(PROBE_SETS),
)
def probe_sets(context: dg.AssetExecutionContext) -> StageWrites:
    """One row a probe of the shard: its id, its text or token ids, and where it stands in its source file.

    Register a file first: `fabric extract FILE` or `fabric register FILE` makes its partitions.
    """
    return StageWrites(_write(part) for part in each_part(context))


def _write(part: str) -> StageIfChanged:
    probe_set, shard = registered_shard(part)
    source = {"source": dg.MetadataValue.text(probe_set.describe())}

    def kept(committed: Committed) -> dict[str, dg.MetadataValue]:
        refusals = StoredPartitions(layout.lake_path(), (part,)).refusals(part, STAGE)
        return reports.rows_written(committed, refusals) | source

    def write() -> StageWrite:
        survey = survey_shard(probe_set, shard)
        before = ids_to_replace(layout.lake_path(), PROBE_SETS, part)

        def describe(committed: Committed) -> dict[str, dg.MetadataValue]:
            gone = withdrawn(before, stored_ids(layout.lake_path(), PROBE_SETS, part)) if len(before) else 0
            counts = {"withdrawn": dg.MetadataValue.int(gone)}
            return reports.rows_written(committed, survey.refusals) | counts | source

        return StageWrite(
            part=part,
            stage=STAGE,
            content_digest=survey.digest,
            n_rows=survey.n_probes,
            batches=lambda: _record_batches(probe_set, shard),
            refusals=survey.refusals,
            describe=describe,
        )

    return StageIfChanged(part=part, made_of=shard_identity(probe_set, shard), write=write, describe_kept=kept)


def _record_batches(probe_set: ProbeSet, shard: Shard) -> Iterator[pa.RecordBatch]:
    rows: list[Probe] = []
    characters = 0
    for row in read_shard(probe_set, shard):
        if isinstance(row, Probe):
            rows.append(row)
            characters += len(row.text or "") + sum(len(message.content) for message in row.messages or ())
        if len(rows) == ROWS_A_BATCH or characters >= CHARACTERS_A_BATCH:
            yield PROBE_SETS.rows_of(rows)
            rows, characters = [], 0
    if rows:
        yield PROBE_SETS.rows_of(rows)
