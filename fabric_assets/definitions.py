"""The composition root: loads `defs/` and gives every asset its resources."""

from pathlib import Path

import dagster as dg

from fabric_assets import cluster
from io_managers.delta_io_manager import DeltaIOManager
from resources.extraction_engine import ExtractionEngine
from resources.model import Model


@dg.definitions
def defs() -> dg.Definitions:
    """What run configuration leaves open is as FABRIC_HOME, FABRIC_MODEL and FABRIC_THREADS say.

    FABRIC_BROKER says where a step that needs an engine runs.
    """
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        dg.Definitions(
            resources={
                "delta": DeltaIOManager(),
                "model": Model(),
                "extraction_engine": ExtractionEngine(),
            },
            executor=_executor(),
        ),
    )


def _executor() -> dg.ExecutorDefinition:
    """One process for a run; with FABRIC_BROKER, attested workers for the steps that need an engine."""
    url = cluster.broker_url()
    if url is None:
        return dg.in_process_executor
    from resources.broker.executor import cluster_executor

    return cluster_executor(url)
