"""Runs whose process is gone: failed, and their slots of a pool freed.

A run that was killed holds its slot for ever: Dagster's monitoring frees the slots of runs that ended, and one that was
started from a terminal, or whose code server was killed with it, never ends (dagster-io/dagster issue 32560).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

import dagster as dg

from resources.dagster_internals import SqliteEventLogStorage
from resources.processes import Process, exists, is_gone, started_ticks, tagged_process, this_process

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
    unfinished = [run for _, run in runs if run is not None and not run.is_finished]
    gone = _fail(instance, unfinished, lambda run: not _is_alive(instance, run.run_id))
    ended = [run_id for run_id, run in runs if run is None or run.is_finished]
    for run_id in ended:
        storage.free_concurrency_slots_for_run(run_id)
    return sorted([*gone, *ended])


def fail_dead_runs(instance: dg.DagsterInstance, runs: Iterable[dg.DagsterRun]) -> list[str]:
    """Fails those of `runs` whose tag names a process that is gone, and frees their slots; the ids of those.

    Runs of other machines, and those that name no process, are left alone.
    """
    here = this_process()
    return [] if here is None else _fail(instance, runs, lambda run: _is_of_one_that_is_gone(run, here))


def _fail(
    instance: dg.DagsterInstance, runs: Iterable[dg.DagsterRun], is_dead: Callable[[dg.DagsterRun], bool]
) -> list[str]:
    failed = []
    for seen in runs:
        # Read again: one that has just ended has no process either, and what it became is stored before that is gone.
        run = instance.get_run_by_id(seen.run_id) if is_dead(seen) else None
        if run is None or run.is_finished:
            continue
        instance.report_run_failed(run, "its process is gone; it was killed, or the machine went down")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        failed.append(run.run_id)
    return failed


def _is_of_one_that_is_gone(run: dg.DagsterRun, here: Process) -> bool:
    process = tagged_process(run.run_id, run.tags)
    return process is not None and is_gone(process, here)


def _claimed(storage: SqliteEventLogStorage, key: str) -> list:
    return list(storage.get_concurrency_info(key).claimed_slots)


def _is_alive(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a process that executes the run is there; a run that has not said which one may be about to."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
    events = [record.event_log_entry.dagster_event for record in records]
    pids = [e.engine_event_data.metadata["pid"].value for e in events if e and "pid" in e.engine_event_data.metadata]
    if not pids:
        return True
    # The newest event, not the one with the number: the clock may have been set while the run went on.
    newest = instance.get_records_for_run(run_id, limit=1, ascending=False).records[0]
    return _is_there(int(str(pids[-1])), newest.event_log_entry.timestamp)


def _is_there(pid: int, since: float) -> bool:
    """Whether a process has that id which had it already at that time (seconds since the epoch)."""
    return exists(pid) and _started(pid) <= since + CLOCK_S


def _started(pid: int) -> float:
    """When a process was started, in seconds since the epoch; 0 where the system does not say."""
    try:
        # Not /proc/uptime, which is a container's own in some (lxcfs).
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started_ticks(pid) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError):
        return 0.0
