"""Runs whose process is gone: failed, and their slots of a pool freed.

A run that was killed holds its slot for ever: Dagster's monitoring frees the slots of runs that ended, and one that was
started from a terminal never ends (dagster-io/dagster issue 32560).
"""

from __future__ import annotations

import os

import dagster as dg
from dagster._core.storage.event_log.sqlite import SqliteEventLogStorage


def release_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Frees the slots that dead runs hold and marks those runs failed; returns their ids.

    Only of the embedded instance, whose runs are all of this machine: a run is dead if it ended, or if the process that
    said it executes its steps is no longer there.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqliteEventLogStorage):
        return []
    holders = {slot.run_id for key in storage.get_concurrency_keys() for slot in _claimed(storage, key)}
    dead = []
    for run_id in sorted(holders):
        run = instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            if _is_alive(instance, run_id):
                continue
            instance.report_run_failed(run, "its process is gone; it was killed, or the machine went down")
        storage.free_concurrency_slots_for_run(run_id)
        dead.append(run_id)
    return dead


def _claimed(storage: SqliteEventLogStorage, key: str) -> list:
    return list(storage.get_concurrency_info(key).claimed_slots)


def _is_alive(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a process that executes the run is there; a run that has not said which one may be about to."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
    events = [record.event_log_entry.dagster_event for record in records]
    pids = [e.engine_event_data.metadata["pid"].value for e in events if e and "pid" in e.engine_event_data.metadata]
    return not pids or any(_exists(int(str(pid))) for pid in pids[-1:])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
