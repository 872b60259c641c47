"""Assets `extraction_requests` and `hidden_states`: what is asked of an engine, and the vectors it gave."""

from collections.abc import Sequence

import dagster as dg

from fabric_assets import reports
from fabric_assets.defs.engines import EngineChoice, require_built_from
from fabric_assets.defs.partitions import BACKFILL, probe_shards
from io_managers import layout
from io_managers.canary import registered_canary
from io_managers.delta_io_manager import StageWrite, StageWrites, VectorWrite, VectorWrites
from io_managers.reading import StoredPartitions
from io_managers.tables import EXTRACTION_REQUESTS, HIDDEN_STATES
from resources.extraction import PartitionVectors
from resources.extraction_engine import ExtractionEngine
from resources.model import Model
from resources.proof import ProvenEngine
from resources.proof.contract import CanaryBatch, WorkDescription, check_contract
from resources.records import (
    EngineRecord,
    WorkItemManifest,
    digest,
    extraction_request,
    partition_digest,
)

CANARY_TOLERANCE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
"""Greatest relative distance between two builds' vectors of one sequence. FP16 on an H200 was seen 0.0062 from float32
at most (benchmarks/results/gpu_parity.json)."""


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
    require_built_from(model, chosen)
    proven = extraction_engine.open(chosen, layout.engines_path())
    canary = _canary(chosen)
    return VectorWrites(
        _vectors_write(part, proven, chosen, tokenised_batches, canary) for part in context.partition_keys
    )


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


def _canary(engine: EngineRecord) -> CanaryBatch | None:
    """What another build of the same model stored, which this one must reproduce: two never mix silently in a table."""
    stored = registered_canary(layout.lake_path(), engine.model_key, other_than=engine.engine_id)
    return None if stored is None else CanaryBatch(*stored, tolerance=CANARY_TOLERANCE[engine.precision])


def _vectors_write(
    part: str, proven: ProvenEngine, engine: EngineRecord, stored: StoredPartitions, canary: CanaryBatch | None
) -> VectorWrite:
    manifest = stored.manifest(part)
    clauses = check_contract(proven, _work(engine, manifest), canary)
    if failed := [c for c in clauses if not c.passed]:
        raise dg.Failure(
            description=f"{part}: the engine does not meet the contract of its work items: "
            + "; ".join(f"{c.name}: saw {c.seen}, expected {c.expected}" for c in failed)
            + "; materialise tokenised_batches and engine with the same model settings",
            metadata=reports.contract(clauses),
            allow_retries=False,
        )
    stream = PartitionVectors(
        part=part,
        engine=proven,
        work_items=lambda: stored.work_items(part),
        requests=stored.requests(part, proven.engine_id),
        input_digest=partition_digest(manifest),
        total_tokens=sum(item.n_tokens for item in manifest),
    )
    return VectorWrite(
        stream=stream,
        describe=lambda committed: reports.vectors(
            committed, stream.throughput, stored.refusals(part), stored.versions(), clauses
        ),
    )


def _work(engine: EngineRecord, manifest: Sequence[WorkItemManifest]) -> WorkDescription:
    """What the stored work items, and the engine as it was registered, ask of the engine that was opened."""
    return WorkDescription(
        model_key=engine.model_key,
        tokenizer_id=", ".join(sorted({item.tokenizer_id for item in manifest})) or engine.tokenizer_id,
        hidden_size=engine.hidden_size,
        dtype=engine.precision,
        vocab_size=engine.vocab_size,
        max_sequences=max((item.n_sequences for item in manifest), default=0),
        max_num_tokens=max((item.n_tokens for item in manifest), default=0),
        max_input_len=max((item.max_tokens for item in manifest), default=0),
    )
