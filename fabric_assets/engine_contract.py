"""The contract of an engine with the work that a run's model settings will ask of it, before any work item is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from io_managers.canary import registered_canary
from resources.checkpoint import Checkpoint
from resources.engine.config import FOREIGN
from resources.errors import FabricError
from resources.model import Model
from resources.proof import ProvenEngine
from resources.proof.contract import CanaryBatch, WorkDescription, check_contract, work_of
from resources.proof.validation import Clause
from resources.proof.vectors import TABLE_TOLERANCE
from resources.records import EngineRecord


def contract_of(
    proven: ProvenEngine, engine: EngineRecord, model: Model | None, lake: Path | str
) -> tuple[Clause, ...]:
    """Every clause, with the canary that another build of the model left in `lake`, if one did.

    Without a `model` the work is what the engine was registered for.
    """
    return check_contract(proven, _work(engine, model), canary_of(engine, lake))


def canary_of(engine: EngineRecord, lake: Path | str) -> CanaryBatch | None:
    """What another build of the model stored, which this one must reproduce: two never mix silently in a table."""
    stored = registered_canary(lake, engine.model_key, other_than=engine.engine_id)
    return None if stored is None else CanaryBatch(*stored, tolerance=TABLE_TOLERANCE[engine.precision])


def checkpoint_at_hand(engine: EngineRecord, model: Model) -> tuple[Checkpoint | None, str]:
    """The checkpoint of `model`, if the engine was built from it, else None; and what is so, in words."""
    if engine.graph_version == FOREIGN:
        return None, "the engine was not built here, and its checkpoint is not known"
    try:
        checkpoint = model.open_checkpoint()
        digest = checkpoint.digest
    except FabricError as error:
        return None, f"the checkpoint cannot be opened: {error}"
    if digest != engine.checkpoint_digest:
        return None, f"{checkpoint.name} is not the checkpoint that the engine was built from"
    return checkpoint, f"checked against {checkpoint.name}"


def _work(engine: EngineRecord, model: Model | None) -> WorkDescription:
    if model is None:
        return work_of(engine)
    tokenizer, limits = model.open_tokenizer(), model.limits
    return replace(
        work_of(engine),
        tokenizer_id=tokenizer.tokenizer_id,
        vocab_size=tokenizer.vocab_size,
        max_sequences=limits.max_batch_size,
        max_num_tokens=limits.max_num_tokens,
        max_input_len=limits.max_input_len,
    )
