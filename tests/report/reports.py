"""Validation reports of real engines, each made once."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from resources import proof
from resources.errors import EngineRefused
from resources.proof.validation import ValidationReport
from tests import zoo


@functools.cache
def report_of(kind: str) -> ValidationReport:
    """What the proof says of a zoo engine."""
    with tempfile.TemporaryDirectory() as folder:
        zoo.write_engine(kind, Path(folder))
        try:
            with proof.load(Path(folder), threads=1) as engine:
                return engine.report
        except EngineRefused as refusal:
            return refusal.report
