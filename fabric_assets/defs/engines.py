"""Assets `engine` and `engine_validation_report`: a built engine, and what was shown of it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from uuid import uuid4

import dagster as dg
from pydantic import Field

from fabric_assets import cluster, reports
from fabric_assets.engine_contract import checkpoint_at_hand, contract_of
from fabric_assets.partitions import GPU_POOL
from io_managers import layout
from io_managers.reading import read_engine
from io_managers.tables import ENGINE_VALIDATION_REPORTS, ENGINES
from resources.engine.adopt import adopt_engine
from resources.engine.backend import choose_backend
from resources.engine.build import build_engine
from resources.engine.config import FOREIGN, read_engine_config, read_engine_record
from resources.extraction_engine import ExtractionEngine
from resources.model import Model
from resources.records import EngineRecord, EngineVerdict
from resources.report import page
from resources.report_metadata import report_metadata


class EngineBuild(dg.Config):
    """How the engine is built. What it is built from is the `model` resource."""

    backend: Literal["auto", "onnxruntime", "tensorrt"] = Field(
        default="auto", description="What runs the packed graph. auto: tensorrt where it can run, else onnxruntime."
    )
    precision: Literal["float32", "float16", "bfloat16"] = Field(default="float32", description="Weights and states.")
    tactic_sources: list[str] = Field(
        default=[], description="Libraries (CUBLAS, ...) whose kernels TensorRT may use beside its own, if installed."
    )
    directory: str | None = Field(
        default=None,
        description="An engine directory that is there already, to register instead of building one. One that this "
        "project did not build (TensorRT-LLM's layout) is copied, with this run's tokenizer beside it.",
    )


class EngineChoice(dg.Config):
    """Which engine extracts."""

    engine_id: str | None = Field(
        default=None,
        description="Unset: the contract's, where a broker has one; the engine that the run itself built; the newest.",
    )

    def of(self, engine: EngineRecord) -> EngineRecord:
        """The engine that is named here or by a broker's contract, else `engine`."""
        named = self.engine_id or cluster.engine_id()
        return engine if named is None else read_engine(layout.lake_path(), engine_id=named)


def require_built_from(model: Model, engine: EngineRecord) -> None:
    """Refuses an engine that this project built from another checkpoint than the run's: whoever materialised `engine`
    last would decide whose vectors are stored. An engine that was registered from elsewhere is nobody's model here."""
    elsewhere = Path(engine.directory).is_absolute() or engine.graph_version == FOREIGN
    if elsewhere or engine.checkpoint_digest == model.open_checkpoint().digest:
        return
    raise dg.Failure(
        description=f"engine {engine.engine_id} was built from checkpoint {engine.checkpoint_digest}; this run's model "
        f"is {model.open_checkpoint().name}, {model.open_checkpoint().digest}; materialise engine and "
        "engine_validation_report with this run's model, or give the run the engine's model",
        allow_retries=False,
    )


@dg.asset(
    io_manager_key="delta",
    group_name="engines",
    pool=GPU_POOL,
    kinds={"onnx"},
    metadata=reports.table_definition(ENGINES),
)
def engine(context: dg.AssetExecutionContext, config: EngineBuild, model: Model) -> EngineRecord:
    """An engine built from the model's packed graph, in a folder of its own. Provenance: `engine_id`."""
    if config.directory is not None:
        record = _registered(Path(config.directory).resolve(), model)
    else:
        backend: str = config.backend
        if backend == "auto":
            backend, reason = choose_backend()
            context.log.info(f"backend: {reason}")
        record = build_engine(
            model.open_checkpoint(),
            model.open_tokenizer(),
            layout.engines_path(),
            backend=backend,
            precision=config.precision,
            limits=model.limits,
            tactic_sources=tuple(config.tactic_sources),
        )
    context.add_output_metadata(reports.engine(record, layout.engines_path()))
    return record


@dg.asset(
    io_manager_key="delta",
    group_name="engines",
    pool=GPU_POOL,
    kinds={"deltalake"},
    metadata=reports.table_definition(ENGINE_VALIDATION_REPORTS),
)
def engine_validation_report(
    context: dg.AssetExecutionContext, model: Model, extraction_engine: ExtractionEngine, engine: EngineRecord
) -> EngineVerdict:
    """What was shown of the engine: its gather convention, proved by dependence, or why it is refused.

    A refusal is stored too; the blocking check `convention_proved` keeps anything from being extracted with it. Each
    validation leaves a page of its own in the home's `reports`.
    """
    checkpoint, why = checkpoint_at_hand(engine, model)
    context.log.info(f"language-model head: {why}")
    report = extraction_engine.report(engine, layout.engines_path(), checkpoint=checkpoint)
    if report.verdict == "proved":
        proven = extraction_engine.open(engine, layout.engines_path())
        asks = None if checkpoint is None else model
        report = replace(report, contract=contract_of(proven, engine, asks, layout.lake_path()))
    report_id = uuid4().hex
    path = layout.report_path(report_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(report, validated_at=datetime.now(UTC)), encoding="utf-8")
    context.add_output_metadata({**report_metadata(report), "page": dg.MetadataValue.path(str(path))})
    return EngineVerdict(
        report_id=report_id,
        engine_id=engine.engine_id,
        model_key=engine.model_key,
        verdict=report.verdict,
        convention=report.convention,
        decided_by=report.decided_by,
        reason=report.reason,
        evidence_json=report.to_json(),
    )


def _registered(directory: Path, model: Model) -> EngineRecord:
    """One of this project's engines stays where it is; a foreign one is adopted."""
    if read_engine_config(directory).provenance is None:
        return adopt_engine(directory, model.open_tokenizer(), layout.engines_path())
    return replace(read_engine_record(directory), directory=str(directory))
