"""The home that the tests of the UI look at: what a person has after an engine was refused and another one proved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from fabric_assets.definitions import defs
from fabric_assets.instance import open_instance
from fabric_assets.upkeep.registration import add_partitions
from io_managers import layout
from resources.probe_files import ProbeFormat, register
from tests.tiny import tiny_gguf
from tests.zoo import write_engine

LINES = [f"{n} and {n + 1} make {2 * n + 1}" for n in range(120)]
SHARD_ROWS = 24
EMPTY_ROW = 30


@dataclass(frozen=True, kw_only=True)
class Home:
    """A home after four runs. Of its partitions the first failed, the next two have vectors, the others are missing."""

    folder: Path
    environment: dict[str, str]
    parts: list[str]
    refused_validation: str
    """Run id of the validation that refused a bidirectional engine."""
    refused_extraction: str
    """Run id of the extraction of the first partition with that engine."""

    @property
    def dagster_home(self) -> Path:
        return self.folder / "home" / "dagster"


def make_home(folder: Path) -> Home:
    """Makes it with the project's own jobs."""
    model = tiny_gguf(folder / "tiny.gguf")
    environment = {"FABRIC_HOME": str(folder / "home"), "FABRIC_MODEL": str(model)}
    write_engine("bidirectional", folder / "bidirectional")
    probes = folder / "sums.txt"
    probes.write_text("".join("\n" if row == EMPTY_ROW else f"{line}\n" for row, line in enumerate(LINES)))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with open_instance() as instance:
            text = ProbeFormat(format="text")
            probe_set = register(probes, format=text, shard_rows=SHARD_ROWS, folder=layout.probes_path(), name="sums")
            add_partitions(instance, probe_set)
            parts = [shard.part for shard in probe_set.shards]
            directory = {"engine": {"config": {"directory": str(folder / "bidirectional")}}}
            refused = _run(instance, "build_engine", succeeds=False, ops=directory)
            failed = _run(instance, "extract", succeeds=False, partition_key=parts[0])
            _run(instance, "build_engine")
            ends = {"dagster/asset_partition_range_start": parts[1], "dagster/asset_partition_range_end": parts[2]}
            _run(instance, "extract", tags=ends)
    return Home(
        folder=folder, environment=environment, parts=parts, refused_validation=refused, refused_extraction=failed
    )


def _run(
    instance: dg.DagsterInstance,
    job: str,
    *,
    succeeds: bool = True,
    ops: dict[str, Any] | None = None,
    **options: Any,
) -> str:
    quiet = {"console": {"config": {"log_level": "CRITICAL"}}}
    result = (
        defs()
        .resolve_job_def(job)
        .execute_in_process(
            instance=instance, run_config={"loggers": quiet, "ops": ops or {}}, raise_on_error=False, **options
        )
    )
    assert result.success == succeeds, job
    return result.run_id
