"""Runs partitions through the broker, in a process whose code location was loaded with it; one JSON line a run.

usage: run_parts.py SETTINGS.json PART [PART ...]; several parts joined by "..." are one run over that range.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableRepository

from fabric_assets.instance import open_instance

ROOT = Path(__file__).parents[2]


def main(settings: Path, parts: list[str]) -> None:
    """Each run in turn, whatever became of the one before."""
    job = ReconstructableRepository.for_module(
        "fabric_assets.definitions", "defs", working_directory=str(ROOT)
    ).get_reconstructable_job("extract")
    with open_instance() as instance:
        for part in parts:
            first, _, last = part.partition("...")
            tags = {"dagster/partition": first}
            if last:
                tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
            started = time.monotonic()
            with dg.execute_job(
                job,
                instance=instance,
                run_config=json.loads(settings.read_text()),
                tags=tags,
                raise_on_error=False,
            ) as result:
                logs = instance.all_logs(result.run_id)
                said = {
                    "part": part,
                    "run_id": result.run_id,
                    "success": result.success,
                    "seconds": round(time.monotonic() - started, 2),
                    "errors": [_said(e) for e in logs if e.level >= 40],
                    "warnings": [e.user_message for e in logs if e.level == 30],
                    "starts": _starts(logs),
                    "step_s": _step_s(logs),
                }
            print(json.dumps(said), flush=True)


def _starts(logs: Sequence[dg.EventLogEntry]) -> int:
    """How often the step that needs an engine was started."""
    return sum(kind in ("STEP_START", "STEP_RESTARTED") for kind, _ in _of_engine_step(logs))


def _step_s(logs: Sequence[dg.EventLogEntry]) -> float | None:
    """Seconds from the last start of that step to its success; None where it has none."""
    times = dict(_of_engine_step(logs))
    return round(times["STEP_SUCCESS"] - times["STEP_START"], 1) if "STEP_SUCCESS" in times else None


def _of_engine_step(logs: Sequence[dg.EventLogEntry]) -> list[tuple[str, float]]:
    """Each event of that step with the time at which it was logged, in seconds."""
    events = [(e.dagster_event, e.timestamp) for e in logs if e.step_key == "hidden_states"]
    return [(event.event_type_value, logged) for event, logged in events if event is not None]


def _said(entry: dg.EventLogEntry) -> str:
    event = entry.dagster_event
    error = getattr(event.event_specific_data, "error", None) if event is not None else None
    return f"{entry.user_message} {error.to_string() if error is not None else ''}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
