"""The definitions as a whole: every output goes through the store, and nothing heavy is loaded by looking at them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from io_managers.delta_io_manager import StageWrites, VectorWrites
from resources.records import EngineRecord, EngineVerdict
from tests.fabric_assets.conftest import ALL_ASSETS

ROOT = Path(__file__).parents[2]
STORED_TYPES = {t.__name__ for t in (StageWrites, VectorWrites, EngineRecord, EngineVerdict)}


def test_no_output_bypasses_the_delta_io_manager(definitions: dg.Definitions) -> None:
    """An output of type Nothing, or one left to inference, would never reach `handle_output`."""
    outputs = {
        key.to_user_string(): assets.op.output_dict[name]
        for assets in definitions.resolve_asset_graph().assets_defs
        if not isinstance(assets, dg.AssetChecksDefinition)
        for name, key in assets.keys_by_output_name.items()
    }
    assert set(outputs) == set(ALL_ASSETS)
    for key, output in outputs.items():
        assert output.io_manager_key == "delta", key
        assert output.dagster_type.display_name in STORED_TYPES, (key, output.dagster_type.display_name)


def test_every_asset_states_its_table_and_columns(definitions: dg.Definitions) -> None:
    for spec in definitions.resolve_all_asset_specs():
        assert spec.metadata.keys() >= {"dagster/table_name", "dagster/column_schema"}, spec.key
        assert spec.description, spec.key


@pytest.mark.parametrize("heavy", ["onnxruntime", "tensorrt", "cuda", "torch", "transformers"])
def test_loading_the_definitions_loads_no_engine_library(heavy: str) -> None:
    code = f"import sys, fabric_assets.definitions as d; d.defs(); sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_workspace_and_project_agree_on_the_code_location() -> None:
    """Two names make every load print warnings, and a backfill started under one fail under the other."""
    location = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"][0]["python_module"]
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert location["location_name"] == project["dg"]["project"]["code_location_name"]
    assert location["module_name"] == project["dagster"]["module_name"]


@pytest.mark.slow
def test_dg_finds_the_definitions(tmp_path: Path) -> None:
    dg_command = Path(sys.executable).parent / "dg"
    run = subprocess.run([dg_command, "check", "defs"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
