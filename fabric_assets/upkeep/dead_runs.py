"""Runs whose process is gone: failed, and their slots of a pool freed.

A run that was killed holds its slot for ever: Dagster's monitoring frees the slots of runs that ended, and one that was
started from a terminal, or whose code server was killed with it, never ends (dagster-io/dagster issue 32560).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import dagster as dg

from resources.dagster_internals import SqliteEventLogStorage

CLOCK_S = 60.0
"""Most seconds by which a machine's clock is set right after it has started."""


def release_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Frees the slots that dead runs hold and marks those runs failed; returns their ids.

    Only of the embedded instance, whose runs are all of this machine: a run is dead if it ended, or if the process that
    said it executes its steps is no longer there.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqliteEventLogStorage):
        return []
    holders = {slot.run_id for key in storage.get_concurrency_keys() for slot in _claimed(storage, key)}
    runs = [(run_id, instance.get_run_by_id(run_id)) for run_id in sorted(holders)]
    gone = fail_dead_runs(instance, [run for _, run in runs if run is not None and not run.is_finished])
    ended = [run_id for run_id, run in runs if run is None or run.is_finished]
    for run_id in ended:
        storage.free_concurrency_slots_for_run(run_id)
    return sorted([*gone, *ended])


def fail_dead_runs(instance: dg.DagsterInstance, runs: Iterable[dg.DagsterRun]) -> list[str]:
    """Fails those of `runs`, all unfinished ones of this machine, whose process is gone, and frees their slots; the ids
    of those."""
    dead = [run for run in runs if not _is_alive(instance, run.run_id)]
    for run in dead:
        instance.report_run_failed(run, "its process is gone; it was killed, or the machine went down")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return [run.run_id for run in dead]


def _claimed(storage: SqliteEventLogStorage, key: str) -> list:
    return list(storage.get_concurrency_info(key).claimed_slots)


def _is_alive(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a process that executes the run is there; a run that has not said which one may be about to."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
    entries = [(record.event_log_entry.dagster_event, record.event_log_entry.timestamp) for record in records]
    said = [
        (int(str(event.engine_event_data.metadata["pid"].value)), logged)
        for event, logged in entries
        if event is not None and "pid" in event.engine_event_data.metadata
    ]
    return not said or _is_there(*said[-1])


def _is_there(pid: int, since: float) -> bool:
    """Whether a process has that id which had it already at that time (seconds since the epoch)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started(pid) <= since + CLOCK_S


def _started(pid: int) -> float:
    """When a process was started, in seconds since the epoch; 0 where the system does not say."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0.0
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
