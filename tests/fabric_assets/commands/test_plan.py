"""A dry run comes to what the run itself comes to, and makes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabric_assets.commands.plan import plan_command
from fabric_assets.commands.planning import Plan, plan
from io_managers import layout
from io_managers.reading import StoredPartitions
from resources.model import Model
from resources.probe_files import ProbeFormat
from tests.fabric_assets.conftest import Fabric

SMALL = {"max_input_len": 24, "max_num_tokens": 64, "max_batch_size": 12}
ROWS = [{"text": f"text {n % 7}"} for n in range(40)] + [{"text": ""}, {"text": "x" * 60}, {}, {"text": "one more"}]


@pytest.fixture
def probes(tmp_path: Path) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def planned(fabric: Fabric, probes: Path, sample: int = 1000) -> Plan:
    return plan(
        probes,
        format=ProbeFormat(),
        shard_rows=10,
        model=Model(checkpoint=str(fabric.checkpoint), **SMALL),
        precision="float32",
        home=layout.home(),
        rate=None,
        sample=sample,
    )


def test_a_plan_is_what_the_run_comes_to(fabric: Fabric, probes: Path) -> None:
    found = planned(fabric, probes)
    assert not layout.lake_path().exists() or not list(layout.lake_path().iterdir())
    assert not list(layout.probes_path().iterdir())

    parts = fabric.register(probes.read_bytes(), ending="jsonl", shard_rows=10)
    assert fabric.run("engine", "engine_validation_report").success
    for part in parts:
        assert fabric.run("probe_sets", "tokenised_batches", "work_items", partition_key=part).success
    stored = StoredPartitions(layout.lake_path(), tuple(parts))
    manifest = [item for part in parts for item in stored.manifest(part)]
    refusals = [refusal for part in parts for refusal in stored.refusals(part)]
    assert found.exact
    assert (found.rows, found.partitions, found.probes) == (44, len(parts), sum(m.n_rows for m in manifest))
    assert found.tokens == sum(m.n_tokens for m in manifest)
    assert found.sequences == sum(m.n_sequences for m in manifest)
    assert found.longest == max(m.max_tokens for m in manifest)
    assert found.refusals == {
        f"{stage}: {reason}": sum((r.stage, r.reason) == (stage, reason) for r in refusals)
        for stage, reason in {(r.stage, r.reason) for r in refusals}
    }
    assert found.vector_bytes == found.probes * 64 * 4


def test_a_sample_gives_the_rest_in_proportion(fabric: Fabric, probes: Path) -> None:
    whole, part = planned(fabric, probes), planned(fabric, probes, sample=20)
    assert (part.exact, part.rows, part.partitions) == (False, whole.rows, whole.partitions)
    assert part.rows_tokenised == 20
    assert abs(part.tokens - whole.tokens) < whole.tokens / 2


def test_the_time_is_of_what_was_measured_and_unknown_before(
    fabric: Fabric, probes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_MODEL", str(fabric.checkpoint))
    arguments = [str(probes), "--max-tokens", "24", "--max-batch-tokens", "64", "--max-batch-size", "12"]
    before = CliRunner().invoke(plan_command, arguments)
    assert before.exit_code == 0, before.output
    assert "time        not known" in before.output
    assert "1 tokenised_batches: over-long" in before.output

    [part, *_] = fabric.register(probes.read_bytes(), ending="jsonl", shard_rows=10)
    assert fabric.extract(part).success
    after = CliRunner().invoke(plan_command, arguments)
    assert "measured over 1 partition" in after.output

    other = CliRunner().invoke(plan_command, [*arguments, "--precision", "float16"])
    assert "time        not known" in other.output
