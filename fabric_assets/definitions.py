"""The composition root: loads `defs/` and gives every asset its resources."""

import warnings
from pathlib import Path

import dagster as dg

from io_managers.delta_io_manager import DeltaIOManager
from resources.extraction_engine import ExtractionEngine
from resources.model import Model

warnings.filterwarnings("ignore", category=dg.BetaWarning, message=".*backfill_policy.*")


@dg.definitions
def defs() -> dg.Definitions:
    """What run configuration leaves open is as FABRIC_HOME, FABRIC_MODEL and FABRIC_THREADS say."""
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        dg.Definitions(
            resources={
                "delta": DeltaIOManager(),
                "model": Model(),
                "extraction_engine": ExtractionEngine(),
            },
            executor=dg.in_process_executor,
        ),
    )
