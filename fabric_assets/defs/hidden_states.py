"""Assets `extraction_requests` and `hidden_states`: what is asked of an engine, and the vectors it gave."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import dagster as dg
import numpy as np

from fabric_assets import cluster, reports
from fabric_assets.deferred_vectors import DeferredVectors
from fabric_assets.defs.engines import EngineChoice, require_built_from
from fabric_assets.engine_contract import canary_of
from fabric_assets.partitions import BACKFILL, GPU_POOL, each_part, probe_shards
from fabric_assets.reports.vectors import Extraction, vectors_written
from io_managers import layout
from io_managers.contents import content_version, stored_content
from io_managers.delta_io_manager import StageWrite, StageWrites, VectorWrite, VectorWrites
from io_managers.delta_table import Committed
from io_managers.reading import StoredPartitions
from io_managers.samples import sample_rows
from io_managers.stored_ids import ids_to_replace, stored_ids, withdrawn
from io_managers.tables import EXTRACTION_REQUESTS, HIDDEN_STATES
from resources.extraction import PartitionVectors
from resources.extraction_engine import ExtractionEngine
from resources.model import Model
from resources.proof import ProvenEngine
from resources.proof.contract import CanaryBatch, Clause, WorkDescription, check_contract, work_of
from resources.records import (
    EngineRecord,
    WorkItemManifest,
    digest,
    extraction_request,
    partition_digest,
)


@dg.asset(
    partitions_def=probe_shards,
    backfill_policy=BACKFILL,
    io_manager_key="delta",
    group_name="vectors",
    kinds={"deltalake"},
    metadata=reports.table_definition(EXTRACTION_REQUESTS),
)
def extraction_requests(
    context: dg.AssetExecutionContext,
    config: EngineChoice,
    model: Model,
    work_items: StoredPartitions,
    engine: EngineRecord,
) -> StageWrites:
    """One row a work item and engine: which vector is asked for, in which form. Earlier engines' requests stay."""
    chosen = config.of(engine)
    require_built_from(model, chosen)
    return StageWrites(_requests_write(part, work_items, chosen) for part in context.partition_keys)


@dg.asset(
    partitions_def=probe_shards,
    backfill_policy=BACKFILL,
    deps=["work_items", "extraction_requests", "engine_validation_report"],
    io_manager_key="delta",
    group_name="vectors",
    kinds={"onnx", "deltalake"},
    pool=GPU_POOL,
    op_tags=cluster.engine_tags(),
    metadata=reports.table_definition(HIDDEN_STATES),
)
def hidden_states(
    context: dg.AssetExecutionContext,
    config: EngineChoice,
    model: Model,
    extraction_engine: ExtractionEngine,
    tokenised_batches: StoredPartitions,
    engine: EngineRecord,
) -> VectorWrites:
    """One vector a probe: the input to the language-model head at its last token, checked against its work item."""
    chosen = config.of(engine)
    if extraction_engine.held_tokenizer(chosen.engine_id) is None:
        # A worker's contract names its engine; the model's files need not be on its machine.
        require_built_from(model, chosen)
    inputs = {part: _inputs(part, chosen, tokenised_batches) for part in context.partition_keys}
    if not all(i.kept for i in inputs.values()):
        # A refused engine ends the run here, with its evidence; where every vector is stored already none is opened.
        extraction_engine.open(chosen, layout.engines_path())
    extractor = _Extractor(chosen, extraction_engine, tokenised_batches, model)
    return VectorWrites(
        extractor.write(part, inputs[part]) for part in each_part(context, work=lambda part: inputs[part].tokens_left)
    )


@dataclass(frozen=True)
class _Inputs:
    """What a partition's vectors are made of, and whether those of it are stored already."""

    manifest: Sequence[WorkItemManifest]
    kept: bool

    @property
    def digest(self) -> bytes:
        return partition_digest(self.manifest)

    @property
    def tokens_left(self) -> int:
        return 0 if self.kept else sum(item.n_tokens for item in self.manifest)


def _inputs(part: str, engine: EngineRecord, stored: StoredPartitions) -> _Inputs:
    manifest = stored.manifest(part)
    content = stored_content(layout.lake_path(), HIDDEN_STATES, {"part": part}, model_key=engine.model_key)
    version = content_version(partition_digest(manifest)).to_bytes(8, "little")
    return _Inputs(manifest, kept=content == version)


@dataclass(frozen=True)
class _Extractor:
    """Makes the writes of a run's partitions with one engine."""

    engine: EngineRecord
    resource: ExtractionEngine
    stored: StoredPartitions
    model: Model

    def write(self, part: str, inputs: _Inputs) -> VectorWrite:
        lake, model_key = layout.lake_path(), self.engine.model_key
        before = np.zeros(0, dtype=np.uint64)
        if not inputs.kept:
            before = ids_to_replace(lake, HIDDEN_STATES, part, model_key=model_key)
        clauses: list[Clause] = []
        tokenizer = self.resource.held_tokenizer(self.engine.engine_id) or self.model.open_tokenizer()

        def begin() -> PartitionVectors:
            proven = self.resource.open(self.engine, layout.engines_path())
            clauses.extend(self._require_contract(part, proven, inputs.manifest))
            return PartitionVectors(
                part=part,
                engine=proven,
                work_items=lambda: self.stored.work_items(part),
                requests=self.stored.requests(part, proven.engine_id),
                input_digest=inputs.digest,
                attestation=self.resource.attestation(proven),
                total_tokens=sum(item.n_tokens for item in inputs.manifest),
            )

        stream = DeferredVectors(part=part, engine=self.engine, input_digest=inputs.digest, begin=begin)

        def describe(committed: Committed) -> reports.Metadata:
            throughput = stream.throughput
            after = stored_ids(lake, HIDDEN_STATES, part, model_key=model_key) if len(before) else before
            computed = (
                None
                if throughput is None
                else Extraction(
                    throughput=throughput,
                    norms=stream.norms,
                    clauses=clauses,
                    withdrawn=withdrawn(before, after),
                    attestation=stream.attestation,
                )
            )
            return vectors_written(
                committed=committed,
                engine=self.engine,
                manifest=inputs.manifest,
                refusals=self.stored.refusals(part),
                versions=self.stored.versions(),
                sample=sample_rows(lake, part, model_key=model_key),
                decode=tokenizer.decode,
                extraction=computed,
            )

        return VectorWrite(stream=stream, describe=describe)

    def _require_contract(
        self, part: str, proven: ProvenEngine, manifest: Sequence[WorkItemManifest]
    ) -> Sequence[Clause]:
        clauses = check_contract(proven, _work(self.engine, manifest), self._canary)
        if failed := [c for c in clauses if not c.passed]:
            raise dg.Failure(
                description=f"{part}: the engine does not meet the contract of its work items: "
                + "; ".join(f"{c.name}: saw {c.seen}, expected {c.expected}" for c in failed)
                + "; materialise tokenised_batches and engine with the same model settings",
                metadata=reports.contract(clauses),
                allow_retries=False,
            )
        return clauses

    @cached_property
    def _canary(self) -> CanaryBatch | None:
        return canary_of(self.engine, layout.lake_path())


def _requests_write(part: str, stored: StoredPartitions, engine: EngineRecord) -> StageWrite:
    requests = [
        extraction_request(item, engine_id=engine.engine_id, model_key=engine.model_key, dtype=engine.precision)
        for item in stored.manifest(part)
    ]
    return StageWrite(
        part=part,
        stage="extraction_requests",
        scope={"engine_id": engine.engine_id},
        content_digest=digest(r.request_id.encode() for r in requests),
        n_rows=len(requests),
        batches=lambda: iter([EXTRACTION_REQUESTS.rows_of(requests)]),
        describe=lambda committed: reports.rows_written(committed, ()),
    )


def _work(engine: EngineRecord, manifest: Sequence[WorkItemManifest]) -> WorkDescription:
    """What the stored work items, and the engine as it was registered, ask of the engine that was opened."""
    return replace(
        work_of(engine),
        tokenizer_id=", ".join(sorted({item.tokenizer_id for item in manifest})) or engine.tokenizer_id,
        max_sequences=max((item.n_sequences for item in manifest), default=0),
        max_num_tokens=max((item.n_tokens for item in manifest), default=0),
        max_input_len=max((item.max_tokens for item in manifest), default=0),
    )
