"""The Dagster resource that opens engines: a thin shell over `resources.proof.load`.

Nothing is opened in set-up, which runs before upstream steps and whose failures lose their metadata. `open` loads an
engine once per process; a refusal becomes a `dagster.Failure` that is not retried and carries the evidence. A worker
behind the broker has opened its engine before it took any work: it gives that one, and refuses to open another.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import dagster as dg
from pydantic import Field

from resources.attestation import attest
from resources.checkpoint import Checkpoint, Tokenizer
from resources.engine.plugins import configured_plugins
from resources.errors import ConfigurationError, EngineRefused
from resources.proof import ProvenEngine, load
from resources.proof.validation import ValidationReport
from resources.records import Attestation, EngineRecord
from resources.report_metadata import report_metadata

logger = logging.getLogger("fabric.proof")

_lock = threading.Lock()
_opened: dict[str, ProvenEngine] = {}
_attestations: dict[str, Attestation] = {}
_held: dict[str, Tokenizer] = {}
"""A worker's own engine, by its engine_id, with its tokenizer: it stays open as long as the process lives."""


def hold(engine: ProvenEngine, attestation: Attestation, tokenizer: Tokenizer) -> None:
    """Makes `engine` the only one that this process opens: it is a worker, and was admitted with it."""
    with _lock:
        _close_opened()
        _opened[engine.engine_id], _attestations[engine.engine_id] = engine, attestation
        _held.clear()
        _held[engine.engine_id] = tokenizer


class ExtractionEngine(dg.ConfigurableResource):
    """Opens a built engine through the proof. A process keeps the last one it opened."""

    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of one forward pass; unset: FABRIC_THREADS, else every core."
    )
    plugins: str | None = Field(
        default=None,
        description="Libraries that a TensorRT plan needs, as path=sha256 separated by ':'; unset: FABRIC_TRT_PLUGINS.",
    )

    def open(self, engine: EngineRecord, engines_folder: Path) -> ProvenEngine:
        """The proven engine; a refused one raises `dagster.Failure` with its report as metadata."""
        _require_own(engine.engine_id)
        try:
            return self._load(engine, engines_folder)
        except EngineRefused as refusal:
            raise dg.Failure(
                description=str(refusal), metadata=report_metadata(refusal.report), allow_retries=False
            ) from refusal

    def report(
        self, engine: EngineRecord, engines_folder: Path, *, checkpoint: Checkpoint | None = None
    ) -> ValidationReport:
        """The report of an engine, proved or refused, from a new validation; `checkpoint` as `load` takes it."""
        if _held:
            raise dg.Failure(
                description=f"this process is a worker that holds engine {next(iter(_held))}; it validates no other; "
                "materialise engine_validation_report where no worker runs",
                allow_retries=False,
            )
        with _lock:
            _close_opened()
        try:
            return self._load(engine, engines_folder, checkpoint).report
        except EngineRefused as refusal:
            return refusal.report

    def attestation(self, engine: ProvenEngine) -> Attestation:
        """What this process says of itself and the engine, which `open` gave."""
        return _attestations[engine.engine_id]

    def held_tokenizer(self, engine_id: str) -> Tokenizer | None:
        """The tokenizer of the engine with which this process was admitted as a worker: it needs no checkpoint then.
        None in any other process."""
        return _held.get(engine_id)

    def _load(self, engine: EngineRecord, engines_folder: Path, checkpoint: Checkpoint | None = None) -> ProvenEngine:
        with _lock:
            if engine.engine_id not in _opened:
                _close_opened()
                _opened[engine.engine_id] = load(
                    engines_folder / engine.directory,
                    engine_id=engine.engine_id,
                    checkpoint=checkpoint,
                    threads=self._threads,
                    plugins=configured_plugins(self.plugins),
                    progress=logger.info,
                )
                _attestations[engine.engine_id] = attest(_opened[engine.engine_id])
            return _opened[engine.engine_id]

    @property
    def _threads(self) -> int | None:
        given = os.environ.get("FABRIC_THREADS")
        if self.threads or not given:
            return self.threads
        if not given.isdecimal() or int(given) < 1:
            raise ConfigurationError(
                f"FABRIC_THREADS is {given!r}; expected a whole number of at least 1; correct it, or unset it for "
                "every core"
            )
        return int(given)


def _require_own(engine_id: str) -> None:
    if _held and engine_id not in _held:
        raise dg.Failure(
            description=f"the run asks for engine {engine_id}; this worker was admitted with {next(iter(_held))} and "
            "opens no other; reload the code location with the contract of the engine that is meant",
            allow_retries=False,
        )


def _close_opened() -> None:
    _attestations.clear()
    while _opened:
        _opened.popitem()[1].close()
