"""The house: imports run one way, floor by floor, and only the shells know Dagster."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = (
    {"fabric_assets.cli"},
    {"fabric_assets.commands"},
    {"fabric_assets.definitions"},
    {"fabric_assets.defs"},
    {"fabric_assets.instance"},
    {"fabric_assets.upkeep", "fabric_assets.deferred_vectors", "fabric_assets.engine_contract"},
    {"fabric_assets.reports", "fabric_assets.cluster", "fabric_assets.partitions"},
    {"fabric_assets.__init__"},
    {"resources.extraction_engine", "resources.model", "resources.broker"},
    {"resources.report_metadata"},
    {"resources.extraction", "resources.attestation", "resources.report"},
    {"resources.proof"},
    {"resources.engine"},
    {"resources.graph", "resources.reference_decoder", "resources.work_items", "resources.probe_files", "io_managers"},
    {"resources.checkpoint", "resources.packing", "resources.external_sort"},
    {"resources.records"},
    {"resources.errors", "resources.dagster_internals", "resources.durable", "resources.processes"},
)
"""From the top down. A unit imports itself and what lies below it, never its neighbours."""

SHELLS = {
    "fabric_assets.__init__",
    "fabric_assets.commands.extract",
    "fabric_assets.commands.jobs",
    "fabric_assets.commands.plan",
    "fabric_assets.commands.probe_sets",
    "fabric_assets.definitions",
    "fabric_assets.defs",
    "fabric_assets.instance",
    "fabric_assets.partitions",
    "fabric_assets.reports.check_results",
    "fabric_assets.reports.metadata",
    "fabric_assets.reports.vectors",
    "fabric_assets.upkeep.backfills",
    "fabric_assets.upkeep.dead_runs",
    "fabric_assets.upkeep.registration",
    "resources.broker.executor",
    "resources.broker.steps",
    "resources.dagster_internals",
    "resources.extraction_engine",
    "resources.model",
    "resources.report_metadata",
    "io_managers.delta_io_manager",
}
"""The modules, and packages as a whole, that may import Dagster."""
MODULES = [
    path.relative_to(ROOT).with_suffix("")
    for package in ("fabric_assets", "io_managers", "resources")
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.read_text().strip()
]


def unit(name: str) -> str:
    """The part of the house that a module belongs to."""
    parts = name.split(".")
    return parts[0] if parts[0] == "io_managers" else ".".join(parts[:2])


def imported(node: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere below, but for type checking alone, by its full name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0
            inner = child.module in ("resources", "io_managers", "fabric_assets")
            yield from (f"{child.module}.{a.name}" if inner else str(child.module) for a in child.names)
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from imported(child)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_run_one_way(module: Path) -> None:
    name = ".".join(module.parts)
    own = unit(name)
    floor = next(n for n, units in enumerate(FLOORS) if own in units)
    allowed = {own}.union(*FLOORS[floor + 1 :])
    if own == "io_managers":
        allowed = {own, "resources.records", "resources.durable"}
    names = set(imported(ast.parse((ROOT / module).with_suffix(".py").read_text())))

    assert {n for n in names if n.split(".")[0] in ("fabric_assets", "io_managers", "resources")} <= {
        n for n in names if unit(n) in allowed
    }
    assert {own, name} & SHELLS or not any(n.split(".")[0] == "dagster" for n in names)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_one_module_knows_dagster_from_inside(module: Path) -> None:
    names = set(imported(ast.parse((ROOT / module).with_suffix(".py").read_text())))
    private = [n for n in names if n.split(".")[0].startswith("dagster") and "._" in n]

    assert bool(private) == (module == Path("resources/dagster_internals"))
