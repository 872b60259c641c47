"""Assets `tokenised_batches` and `work_items`: tokens packed into work items, and the manifest they must add up to."""

from collections.abc import Iterator, Sequence
from functools import partial

import dagster as dg

from fabric_assets import reports
from fabric_assets.defs.partitions import BACKFILL, probe_shards
from io_managers import layout
from io_managers.delta_io_manager import StageWrite, StageWrites
from io_managers.reading import StoredPartitions
from io_managers.tables import TOKENISED_BATCHES, WORK_ITEMS
from resources.model import Model
from resources.records import WorkItemManifest, partition_digest
from resources.work_items import tokenise_partition


@dg.multi_asset(
    name="tokenise",
    partitions_def=probe_shards,
    backfill_policy=BACKFILL,
    group_name="inputs",
    outs={
        "tokenised_batches": dg.AssetOut(
            dagster_type=StageWrites,
            io_manager_key="delta",
            kinds={"deltalake"},
            description="A probe's tokens and its place in the work: similar lengths together, equal sequences once.",
            metadata=reports.table_definition(TOKENISED_BATCHES),
        ),
        "work_items": dg.AssetOut(
            dagster_type=StageWrites,
            io_manager_key="delta",
            kinds={"deltalake"},
            description="The manifest: one row a packed batch, with the digest that its rows must have.",
            metadata=reports.table_definition(WORK_ITEMS),
        ),
    },
)
def tokenise(
    context: dg.AssetExecutionContext, model: Model, probe_sets: StoredPartitions
) -> Iterator[dg.Output[StageWrites]]:
    """The tokens of each shard's probes, cut into work items, and the manifest of those."""
    # Filled while the first output is stored, which ends before the second one is asked for.
    manifests: dict[str, Sequence[WorkItemManifest]] = {}
    yield dg.Output(StageWrites(_tokenised(context.partition_keys, model, probe_sets, manifests)), "tokenised_batches")
    yield dg.Output(StageWrites(_manifest_write(part, rows) for part, rows in manifests.items()), "work_items")


def _tokenised(
    parts: Sequence[str], model: Model, probe_sets: StoredPartitions, manifests: dict[str, Sequence[WorkItemManifest]]
) -> Iterator[StageWrite]:
    tokenizer = model.open_tokenizer()
    for part in parts:
        with tokenise_partition(
            part,
            probe_sets.probes(part),
            tokenizer,
            probes_digest=probe_sets.probes_digest(part),
            limits=model.limits,
            vocab_size=model.open_checkpoint().config.vocab_size,
            scratch=layout.scratch_path(),
        ) as tokenised:
            manifests[part] = tokenised.manifest
            yield StageWrite(
                part=part,
                stage="tokenised_batches",
                content_digest=tokenised.content_digest,
                n_rows=tokenised.n_rows,
                batches=tokenised.batches,
                refusals=tokenised.refusals,
                describe=partial(reports.tokenised, tokenised),
            )


def _manifest_write(part: str, manifest: Sequence[WorkItemManifest]) -> StageWrite:
    return StageWrite(
        part=part,
        stage="work_items",
        content_digest=partition_digest(manifest),
        n_rows=len(manifest),
        batches=lambda: iter([WORK_ITEMS.rows_of(manifest)]),
        describe=lambda committed: reports.rows_written(committed, ()),
    )
