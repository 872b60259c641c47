"""The composition root: loads `defs/` and gives every asset its resources."""

import os
import warnings
from pathlib import Path

import dagster as dg

from io_managers.delta_io_manager import DeltaIOManager
from resources.checkpoint import DEFAULT_CHECKPOINT
from resources.extraction_engine import ExtractionEngine
from resources.model import Model

warnings.filterwarnings("ignore", category=dg.BetaWarning, message=".*backfill_policy.*")


@dg.definitions
def defs() -> dg.Definitions:
    """Resources come from the environment: FABRIC_HOME, FABRIC_MODEL and FABRIC_THREADS."""
    threads = os.environ.get("FABRIC_THREADS")
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        dg.Definitions(
            resources={
                "delta": DeltaIOManager(),
                "model": Model(checkpoint=os.environ.get("FABRIC_MODEL", DEFAULT_CHECKPOINT)),
                "extraction_engine": ExtractionEngine(threads=int(threads) if threads else None),
            },
            executor=dg.in_process_executor,
        ),
    )
