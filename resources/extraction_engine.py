"""The Dagster resource that opens engines: a thin shell over `resources.proof.load`.

Nothing is opened in set-up, which runs before upstream steps and whose failures lose their metadata. `open` loads an
engine once per process; a refusal becomes a `dagster.Failure` that is not retried and carries the evidence.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

import dagster as dg
from pydantic import Field

from resources.engine.plugins import configured_plugins
from resources.errors import ConfigurationError, EngineRefused
from resources.proof import ProvenEngine, load
from resources.proof.validation import ValidationReport
from resources.records import EngineRecord

logger = logging.getLogger("fabric.proof")

_lock = threading.Lock()
_opened: dict[str, ProvenEngine] = {}


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
        try:
            return self._load(engine, engines_folder)
        except EngineRefused as refusal:
            raise dg.Failure(
                description=str(refusal), metadata=report_metadata(refusal.report), allow_retries=False
            ) from refusal

    def report(self, engine: EngineRecord, engines_folder: Path) -> ValidationReport:
        """The report of an engine, proved or refused, from a new validation."""
        with _lock:
            _close_opened()
        try:
            return self._load(engine, engines_folder).report
        except EngineRefused as refusal:
            return refusal.report

    def _load(self, engine: EngineRecord, engines_folder: Path) -> ProvenEngine:
        with _lock:
            if engine.engine_id not in _opened:
                _close_opened()
                _opened[engine.engine_id] = load(
                    engines_folder / engine.directory,
                    engine_id=engine.engine_id,
                    threads=self._threads,
                    plugins=configured_plugins(self.plugins),
                    progress=logger.info,
                )
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


def report_metadata(report: ValidationReport) -> dict[str, dg.MetadataValue]:
    """The verdict first, then the evidence; of a validation, or of the failure that a refusal is."""
    return {
        "verdict": dg.MetadataValue.text(report.verdict),
        "sentence": dg.MetadataValue.text(report.sentence),
        "convention": dg.MetadataValue.text(report.convention or "none"),
        "decided_by": dg.MetadataValue.text(str(report.decided_by)),
        "reason": dg.MetadataValue.text(report.reason),
        "evidence": dg.MetadataValue.json(json.loads(report.to_json())),
    }


def _close_opened() -> None:
    while _opened:
        _opened.popitem()[1].close()
