"""A run is dead when the process that said it executes it is not there any more, whoever has its number now."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster import DagsterEvent, DagsterEventType
from dagster._core.events import EngineEventData

from fabric_assets.upkeep.dead_runs import fail_dead_runs

HOUR_S = 3600.0


@dg.job
def some_job() -> None: ...


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def started_run(instance: dg.DagsterInstance, pid: int | None, *, ago_s: float = 0.0) -> dg.DagsterRun:
    """One that said so long ago that it is executed by that process."""
    run = instance.create_run_for_job(some_job, status=dg.DagsterRunStatus.STARTED)
    if pid is not None:
        event = DagsterEvent(
            DagsterEventType.ENGINE_EVENT.value,
            run.job_name,
            message="Started process for run",
            event_specific_data=EngineEventData.in_process(pid),
        )
        instance.report_dagster_event(event, run.run_id, timestamp=time.time() - ago_s)
    return run


def test_only_runs_whose_process_is_gone_are_failed(instance: dg.DagsterInstance) -> None:
    alive, silent = started_run(instance, os.getpid()), started_run(instance, None)
    killed = started_run(instance, gone())
    # Process 1 runs since the machine was started.
    since_the_start = started_run(instance, 1)
    before_the_start = started_run(instance, 1, ago_s=24 * 365 * HOUR_S)

    dead = fail_dead_runs(instance, [alive, silent, killed, since_the_start, before_the_start])

    assert dead == [killed.run_id, before_the_start.run_id]
    failed = [run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))]
    assert set(failed) == set(dead)
