"""The home: made once, also by many at once, kept, and cleared of what killed runs left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from fabric_assets.instance import initialise, open_instance
from io_managers import layout
from resources.errors import ConfigurationError

DAYS = 2 * 86400


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path / "a home"))
    return tmp_path / "a home"


def test_partitions_and_changed_settings_survive_a_second_initialisation(home: Path) -> None:
    with open_instance() as instance:
        instance.add_dynamic_partitions("probe_shards", ["set.00000"])
    settings = home / "dagster" / "dagster.yaml"
    settings.write_text(settings.read_text() + "# mine\n")
    with open_instance() as instance:
        assert instance.get_dynamic_partitions("probe_shards") == ["set.00000"]
    assert settings.read_text().endswith("# mine\n")


@pytest.mark.slow
def test_many_processes_may_make_one_home_at_once() -> None:
    code = "from fabric_assets.instance import open_instance\nwith open_instance() as i: i.get_runs_count()"
    children = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(child.communicate()[1], child.returncode)[1] for child in children] == [0] * 4


@pytest.mark.parametrize("name", ["50%", "a#b", "what?"])
def test_a_home_that_sqlite_would_cut_short_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path / name))
    with pytest.raises(ConfigurationError, match="choose one without them"):
        initialise()


def test_only_what_was_left_long_ago_is_cleared() -> None:
    initialise()
    old = [layout.scratch_path() / "tokenise-old", layout.engines_path() / ".building-old"]
    kept = [layout.scratch_path() / "tokenise-new", layout.engines_path() / "0123456789abcdef"]
    for folder in (*old, *kept):
        folder.mkdir()
        (folder / "file").write_text("x")
    unfinished = layout.lake_path() / "table" / "part.parquet.tmp"
    unfinished.parent.mkdir()
    unfinished.write_text("x")
    past = time.time() - DAYS
    for path in (*old, unfinished, kept[1]):
        os.utime(path, (past, past))
    initialise()
    assert not any(path.exists() for path in (*old, unfinished))
    assert all(path.exists() for path in kept)


HOLD_A_SLOT = """
import sys, time
import dagster as dg
from fabric_assets.instance import open_instance

@dg.op(pool="gpu")
def hold():
    print("held", flush=True)
    time.sleep(600)

@dg.job(executor_def=dg.in_process_executor)
def holding():
    hold()

with open_instance() as instance:
    holding.execute_in_process(instance=instance)
"""


def test_a_run_that_was_killed_is_failed_and_gives_its_slot_back() -> None:
    """It would hold up every later step of the pool: nothing else frees what a killed command held."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_SLOT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    with open_instance() as instance:
        [run] = instance.get_runs()
        assert [slot.run_id for slot in _slots(instance)] == [run.run_id]

        child.kill()
        child.wait()

        with open_instance() as later:
            assert _slots(later) == []
            [run] = later.get_runs()
            assert run.status == dg.DagsterRunStatus.FAILURE


def _slots(instance: dg.DagsterInstance) -> list:
    return list(instance.event_log_storage.get_concurrency_info("gpu").claimed_slots)
