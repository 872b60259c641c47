"""Assets `tokenised_batches` and `work_items`: tokens packed into work items, and the manifest they must add up to."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import dagster as dg

from fabric_assets import reports
from fabric_assets.partitions import BACKFILL, each_part, probe_shards
from io_managers import layout
from io_managers.contents import stored_content
from io_managers.delta_io_manager import StageIfChanged, StageWrite, StageWrites
from io_managers.delta_table import Committed, kept_partition
from io_managers.reading import StoredPartitions
from io_managers.tables import TOKENISED_BATCHES, WORK_ITEMS
from resources.model import Model
from resources.records import WorkItemManifest, partition_digest
from resources.work_items import tokenise_partition
from resources.work_items.recipe import recipe_digest

STAGE = "tokenised_batches"


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
    tokeniser = _Tokeniser(model, probe_sets)
    yield dg.Output(StageWrites(tokeniser.tokens(each_part(context))), "tokenised_batches")
    yield dg.Output(StageWrites(tokeniser.manifest(part) for part in context.partition_keys), "work_items")


@dataclass(frozen=True)
class _Tokeniser:
    """Makes the writes of a run's partitions: their tokens, and after those their manifests."""

    model: Model
    stored: StoredPartitions
    made: dict[str, Sequence[WorkItemManifest]] = field(default_factory=dict)
    """The manifests of what was tokenised just now: filled while the first output is stored, which ends before the
    second one is asked for."""

    def tokens(self, parts: Iterable[str]) -> Iterator[StageWrite | StageIfChanged]:
        for part in parts:
            probes_digest = self.stored.probes_digest(part)
            made_of = recipe_digest(
                probes_digest=probes_digest,
                tokenizer_id=self.model.open_tokenizer().tokenizer_id,
                limits=self.model.limits,
                vocab_size=self.model.open_checkpoint().config.vocab_size,
            )
            with ExitStack() as scratch:
                write = partial(self._write, part, probes_digest, made_of, scratch)
                if _manifest_fits(part, probes_digest):
                    kept = partial(self._describe_kept, part)
                    yield StageIfChanged(part=part, made_of=made_of, write=write, describe_kept=kept)
                else:
                    yield write()

    def manifest(self, part: str) -> StageWrite:
        """The manifest of the tokens that were stored or kept just now."""
        manifest = self.made[part] if part in self.made else self.stored.manifest(part)
        return StageWrite(
            part=part,
            stage="work_items",
            content_digest=partition_digest(manifest),
            n_rows=len(manifest),
            batches=lambda: iter([WORK_ITEMS.rows_of(manifest)]),
            describe=lambda committed: reports.rows_written(committed, ()),
            made_of=self.stored.probes_digest(part),
        )

    def _write(self, part: str, probes_digest: bytes, made_of: bytes, scratch: ExitStack) -> StageWrite:
        """The partition tokenised, its rows in files that last as long as `scratch`."""
        tokenised = scratch.enter_context(
            tokenise_partition(
                part,
                self.stored.probes(part),
                self.model.open_tokenizer(),
                probes_digest=probes_digest,
                limits=self.model.limits,
                vocab_size=self.model.open_checkpoint().config.vocab_size,
                scratch=layout.scratch_path(),
            )
        )
        self.made[part] = tokenised.manifest
        return StageWrite(
            part=part,
            stage=STAGE,
            content_digest=tokenised.content_digest,
            n_rows=tokenised.n_rows,
            batches=tokenised.batches,
            refusals=tokenised.refusals,
            describe=lambda committed: reports.tokenised(tokenised.manifest, tokenised.refusals, committed),
            made_of=made_of,
        )

    def _describe_kept(self, part: str, committed: Committed) -> reports.Metadata:
        return reports.tokenised(self.stored.manifest(part), self.stored.refusals(part, STAGE), committed)


def _manifest_fits(part: str, probes_digest: bytes) -> bool:
    """Whether the stored manifest is whole, and that of the stored tokens."""
    lake, scope = layout.lake_path(), {"part": part}
    return kept_partition(lake, WORK_ITEMS, scope, probes_digest) is not None and stored_content(
        lake, WORK_ITEMS, scope
    ) == stored_content(lake, TOKENISED_BATCHES, scope)
