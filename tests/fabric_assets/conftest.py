"""A home of its own for each test, with a tiny real checkpoint: nothing here is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from fabric_assets.definitions import defs
from fabric_assets.instance import open_instance
from io_managers import layout
from resources.probe_files import ProbeFormat, register
from tests.tiny import tiny_gguf


@pytest.fixture(scope="session")
def definitions() -> dg.Definitions:
    return defs()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "tiny.gguf"
    tiny_gguf(path)
    return path


ALL_ASSETS = (
    "probe_sets",
    "tokenised_batches",
    "work_items",
    "engine",
    "engine_validation_report",
    "extraction_requests",
    "hidden_states",
)
PARTITIONED = tuple(a for a in ALL_ASSETS if not a.startswith("engine"))


@dataclass
class Fabric:
    """A home, its instance and the project's own definitions."""

    definitions: dg.Definitions
    instance: dg.DagsterInstance
    checkpoint: Path
    folder: Path

    def register(self, lines: list[str] | bytes, *, name: str = "set", **options: Any) -> list[str]:
        """Writes a probe file, registers it and adds its partitions; gives their keys."""
        path = self.folder / f"{name}.{options.pop('ending', 'txt')}"
        path.write_bytes(lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode())
        shard_rows = options.pop("shard_rows", 10_000)
        probe_set = register(
            path, format=ProbeFormat(**options), shard_rows=shard_rows, folder=layout.probes_path(), name=name
        )
        parts = [shard.part for shard in probe_set.shards]
        self.instance.add_dynamic_partitions("probe_shards", parts)
        return parts

    def run(self, *assets: str, **options: Any) -> dg.ExecuteInProcessResult:
        """Materialises the named assets, with their checks, in this process."""
        settings = {"max_input_len": 24, "max_num_tokens": 64, "max_batch_size": 12} | options.pop("model", {})
        config = {"model": {"config": {"checkpoint": str(self.checkpoint), **settings}}}
        job = dg.define_asset_job("selected", selection=dg.AssetSelection.assets(*assets))
        merged = dg.Definitions.merge(self.definitions, dg.Definitions(jobs=[job]))
        resolved = merged.resolve_job_def("selected")
        ops = options.pop("ops", {})
        return resolved.execute_in_process(
            instance=self.instance,
            run_config={
                "resources": {k: v for k, v in config.items() if k in resolved.resource_defs},
                "ops": ops,
                "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
            },
            raise_on_error=False,
            **options,
        )

    def extract(self, part: str, **options: Any) -> dg.ExecuteInProcessResult:
        """Materialises everything for one partition in one run."""
        return self.run(*ALL_ASSETS, partition_key=part, **options)


@pytest.fixture
def fabric(
    definitions: dg.Definitions, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fabric]:
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path / "home"))
    with open_instance() as instance:
        yield Fabric(definitions=definitions, instance=instance, checkpoint=tiny_checkpoint, folder=tmp_path)
