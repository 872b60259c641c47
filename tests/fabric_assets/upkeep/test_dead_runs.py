"""A run is dead when the process that said it executes it is not there any more, whoever has its number now."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterEvent, DagsterEventType
from dagster._core.events import EngineEventData

from fabric_assets.upkeep.dead_runs import fail_dead_runs, release_dead_runs
from resources.processes import process_tags, this_process

HOUR_S = 3600.0
YEAR_S = 24 * 365 * HOUR_S
POOL = "gpu"


@dg.job
def some_job() -> None: ...


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An embedded one, with a pool that has room for every run."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.event_log_storage.set_concurrency_slots(POOL, 9)
        yield instance


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def started_run(instance: dg.DagsterInstance, pid: int | None, *, ago_s: float = 0.0) -> dg.DagsterRun:
    """One that holds a slot, and said so long ago that it is executed by that process."""
    run = instance.create_run_for_job(some_job, status=dg.DagsterRunStatus.STARTED)
    instance.event_log_storage.claim_concurrency_slot(POOL, run.run_id, "step")
    if pid is not None:
        say(instance, run, EngineEventData.in_process(pid), ago_s=ago_s)
    return run


def say(instance: dg.DagsterInstance, run: dg.DagsterRun, said: EngineEventData, *, ago_s: float = 0.0) -> None:
    kind = DagsterEventType.ENGINE_EVENT.value
    event = DagsterEvent(kind, run.job_name, message="Started process for run", event_specific_data=said)
    instance.report_dagster_event(event, run.run_id, timestamp=time.time() - ago_s)


def failed(instance: dg.DagsterInstance) -> set[str]:
    runs = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    return {run.run_id for run in runs}


def test_only_runs_whose_process_is_gone_are_failed(instance: dg.DagsterInstance) -> None:
    alive, silent = started_run(instance, os.getpid()), started_run(instance, None)
    killed = started_run(instance, gone())
    # Process 1 runs since the machine was started.
    since_the_start = started_run(instance, 1)
    before_the_start = started_run(instance, 1, ago_s=YEAR_S)

    dead = release_dead_runs(instance)

    assert set(dead) == failed(instance) == {killed.run_id, before_the_start.run_id}
    holders = {slot.run_id for slot in instance.event_log_storage.get_concurrency_info(POOL).claimed_slots}
    assert holders == {alive.run_id, silent.run_id, since_the_start.run_id}


def test_a_run_that_goes_on_while_the_clock_is_set_is_alive(instance: dg.DagsterInstance) -> None:
    run = started_run(instance, os.getpid(), ago_s=YEAR_S)
    say(instance, run, EngineEventData())

    assert release_dead_runs(instance) == []


def test_a_run_that_ends_while_it_is_looked_at_keeps_its_end(instance: dg.DagsterInstance) -> None:
    here = this_process()
    assert here is not None
    run = instance.create_run_for_job(some_job, status=dg.DagsterRunStatus.STARTED)
    instance.add_run_tags(run.run_id, process_tags(run.run_id, replace(here, pid=gone())))
    seen = instance.get_runs()
    instance.report_run_canceled(run)

    assert fail_dead_runs(instance, seen) == []
    assert failed(instance) == set()
