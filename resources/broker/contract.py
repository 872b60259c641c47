"""What a worker must show before it may take work, in one file; its digest names the queue.

Contract: a run and a worker that read the same contract use the same queue, and any others never meet: the queue's name
is a digest of every field. Nothing here knows Celery or Dagster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from resources.errors import ConfigurationError
from resources.proof import ProvenEngine
from resources.proof.contract import CanaryBatch, WorkDescription, check_contract, work_of
from resources.proof.validation import Clause
from resources.proof.vectors import TABLE_TOLERANCE
from resources.records import EngineRecord, digest


@dataclass(frozen=True)
class Contract:
    """One build of one model, and what the work asks of it. Another build is another contract, so two never mix."""

    engine_id: str
    work: WorkDescription
    canary_tolerance: float
    """Greatest relative distance of a vector to one that another build of the model has stored."""

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of every field."""
        return digest([self.to_json().encode()]).hex()

    @property
    def queue(self) -> str:
        """The name of the only queue on which this contract's work travels."""
        return f"fabric.{self.digest}"

    def to_json(self) -> str:
        """A flat JSON object, keys sorted."""
        return json.dumps(self._fields(), sort_keys=True, indent=1)

    def _fields(self) -> dict[str, Any]:
        return {"engine_id": self.engine_id, "canary_tolerance": self.canary_tolerance, **asdict(self.work)}


def contract_for(engine: EngineRecord) -> Contract:
    """The contract for the engine as it was registered: work items are cut by the limits that it was built with."""
    return Contract(
        engine_id=engine.engine_id,
        work=work_of(engine),
        canary_tolerance=TABLE_TOLERANCE[engine.precision],
    )


def read_contract(path: Path) -> Contract:
    """Reads what `to_json` wrote. Raises `ConfigurationError` for a missing file, and for any field more or less."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no contract at {path}; write it with `fabric contract`") from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is no contract ({error}); write it again with `fabric contract`") from error
    kinds = {"engine_id": str, "canary_tolerance": float}
    kinds |= {f.name: int if f.type == "int" else str for f in fields(WorkDescription)}
    seen = {name: type(value) for name, value in document.items()} if isinstance(document, dict) else {}
    if seen != kinds:
        raise ConfigurationError(
            f"{path} has the fields {_named(seen)}; expected {_named(kinds)}; write it again with `fabric contract`"
        )
    engine_id, tolerance = document.pop("engine_id"), document.pop("canary_tolerance")
    return Contract(engine_id=engine_id, work=WorkDescription(**document), canary_tolerance=tolerance)


def clauses_of(
    engine: ProvenEngine, contract: Contract, canary: tuple[Sequence[np.ndarray], np.ndarray] | None
) -> tuple[Clause, ...]:
    """Every clause between a proven engine and the contract: which build it is, then all that `check_contract` checks.

    `canary` is what another build of the model has stored: int arrays of token ids, and float32 vectors of them.
    """
    batch = None if canary is None else CanaryBatch(*canary, tolerance=contract.canary_tolerance)
    same_build = Clause("engine", engine.engine_id == contract.engine_id, engine.engine_id, contract.engine_id)
    return (same_build, *check_contract(engine, contract.work, batch))


def _named(kinds: dict[str, type]) -> str:
    return ", ".join(f"{name} ({kind.__name__})" for name, kind in sorted(kinds.items())) or "no object"
