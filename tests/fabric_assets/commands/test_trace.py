"""From a vector back to its source row: shown where all is as it was, and the step named where something is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from fabric_assets.commands.trace import trace_command
from fabric_assets.commands.tracing import Trace, trace
from io_managers import layout
from io_managers.errors import StoreError
from io_managers.reading import read_engine
from tests.fabric_assets.conftest import Fabric

TEXTS = ["one", "the one and the other", "", "one", "x" * 60]


@pytest.fixture
def part(fabric: Fabric) -> str:
    [part] = fabric.register(TEXTS, format="text")
    assert fabric.extract(part).success
    return part


def traced(part: str, probe_id: str) -> Trace:
    lake = layout.lake_path()
    return trace(lake, layout.engines_path(), part, probe_id, model_key=read_engine(lake).model_key)


def failed(found: Trace) -> set[str]:
    return {step.name for step in found.steps if not step.passed}


def test_a_vector_is_traced_to_its_text_and_a_refusal_to_its_row(part: str) -> None:
    for row in (0, 1, 3):
        found = traced(part, f"set.txt:{row}")
        assert found.passed, found.steps
        assert "".join(token.text for token in found.tokens) == TEXTS[row]
        assert [token.index for token in found.tokens if token.gathered] == [len(found.tokens) - 1]
    for row, reason in ((2, "empty-text"), (4, "over-long")):
        found = traced(part, f"set.txt:{row}")
        assert found.passed and found.refusal is not None, found.steps
        assert (found.refusal.reason, found.refusal.source_row) == (reason, row)
    with pytest.raises(StoreError, match="neither a vector"):
        traced(part, "set.txt:99")


def lose_the_engine(fabric: Fabric, part: str) -> None:
    shutil.rmtree(layout.engines_path() / read_engine(layout.lake_path()).directory)


def edit_the_file(fabric: Fabric, part: str) -> None:
    (fabric.folder / "set.txt").write_text("an edit\n")


def store_other_probes(fabric: Fabric, part: str) -> None:
    fabric.register(["other"], format="text")
    assert fabric.run("probe_sets", partition_key=part).success


def tokenise_anew(fabric: Fabric, part: str) -> None:
    settings = {"add_eos": True}
    assert fabric.run("tokenised_batches", "work_items", partition_key=part, model=settings).success


def forget_the_set(fabric: Fabric, part: str) -> None:
    (layout.probes_path() / "set.json").unlink()


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (lose_the_engine, {"engine", "tokens made again"}),
        (edit_the_file, {"source row"}),
        (store_other_probes, {"probe", "tokens made again"}),
        (tokenise_anew, {"request", "tokens", "tokens made again"}),
        (forget_the_set, {"source row"}),
    ],
)
def test_what_is_not_as_it_was_is_named(
    fabric: Fabric, part: str, change: Callable[[Fabric, str], None], steps: set[str]
) -> None:
    change(fabric, part)
    assert failed(traced(part, "set.txt:0")) == steps


def test_the_command_prints_each_step_and_fails_where_one_does(fabric: Fabric, part: str) -> None:
    shown = CliRunner().invoke(trace_command, [part, "set.txt:1"])
    assert shown.exit_code == 0
    assert "each step shown" in shown.output and "<- gathered" in shown.output
    edit_the_file(fabric, part)
    shown = CliRunner().invoke(trace_command, [part, "set.txt:1"])
    assert shown.exit_code == 1
    assert "not shown: source row" in shown.output and "FAILED source row" in shown.output
