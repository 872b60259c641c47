"""The wall: the store knows the records and nothing above them, and only its shell knows Dagster."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import io_managers

MODULES = sorted(Path(io_managers.__file__).parent.glob("*.py"))
SHELL = {"delta_io_manager"}


def imported(module: Path) -> set[str]:
    """Every module that the file imports anywhere, by its full name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(str(node.module))
    return names


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_imports_keep_the_wall(module: Path) -> None:
    names = imported(module)

    assert {n for n in names if n.split(".")[0] in ("resources", "fabric_assets")} <= {"resources.records"}
    assert module.stem in SHELL or not any(n.split(".")[0] == "dagster" for n in names)
