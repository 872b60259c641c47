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
from resources.errors import EngineRefused
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
                description=str(refusal), metadata=refusal_metadata(refusal.report), allow_retries=False
            ) from refusal

    def report(self, engine: EngineRecord, engines_folder: Path) -> ValidationReport:
        """The report of an engine, proved or refused."""
        try:
            return self._load(engine, engines_folder).report
        except EngineRefused as refusal:
            return refusal.report

    def _load(self, engine: EngineRecord, engines_folder: Path) -> ProvenEngine:
        with _lock:
            if engine.engine_id not in _opened:
                for other in list(_opened):
                    _opened.pop(other).close()
                _opened[engine.engine_id] = load(
                    engines_folder / engine.directory,
                    threads=self._threads,
                    plugins=configured_plugins(self.plugins),
                    progress=logger.info,
                )
            return _opened[engine.engine_id]

    @property
    def _threads(self) -> int | None:
        given = os.environ.get("FABRIC_THREADS")
        return self.threads or (int(given) if given else None)


def refusal_metadata(report: ValidationReport) -> dict[str, dg.MetadataValue]:
    """The evidence of a refusal, for a failure's metadata."""
    return {
        "verdict": dg.MetadataValue.text(report.verdict),
        "reason": dg.MetadataValue.text(report.reason),
        "decided_by": dg.MetadataValue.text(str(report.decided_by)),
        "evidence": dg.MetadataValue.json(json.loads(report.to_json())),
    }
