"""2,000 partitions backfilled on the embedded instance by the real daemon, with a tiny engine: what the orchestration
itself costs. Writes results/backfill_scale.json.

Five probes a partition, so that nearly all of the time is overhead; the extraction's own seconds stand beside it. The
daemon looks at backfills every 3 s (30 s by default). At the end one run of unchanged partitions is made again.

usage: python benchmarks/backfill_scale.py [--partitions 2000] [--a-run 100]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from machine import describe

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "backfill_scale.json"
PROBES_A_PARTITION = 5
LOCK_ERRORS = ("database is locked", "OperationalError")


def main() -> None:
    """Runs the backfill in a home of its own and writes the result file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--a-run", type=int, default=100)
    parser.add_argument("--keep", action="store_true", help="Write no result file.")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory(dir=os.environ.get("FABRIC_BENCH_DIR")) as folder:
        os.environ |= {
            "FABRIC_HOME": f"{folder}/home",
            "FABRIC_MODEL": f"{folder}/tiny.gguf",
            "FABRIC_PARTITIONS_A_RUN": str(arguments.a_run),
        }
        measured = _measure(Path(folder), arguments.partitions)
    result = describe() | {"engine": "random llama, hidden 16, 1 layer, float32, ONNX Runtime", **measured}
    if not arguments.keep:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def _measure(folder: Path, partitions: int) -> dict[str, Any]:
    from fabric_assets.definitions import defs
    from fabric_assets.instance import open_instance
    from fabric_assets.upkeep import backfills
    from fabric_assets.upkeep.registration import add_partitions
    from io_managers import layout
    from resources.probe_files import ProbeFormat, register
    from tests.processes import running_daemon
    from tests.tiny import tiny_gguf

    tiny_gguf(folder / "tiny.gguf", hidden=16, layers=1)
    probes = folder / "probes.txt"
    probes.write_text("".join(f"probe {n}\n" for n in range(partitions * PROBES_A_PARTITION)))
    definitions = defs()
    with open_instance() as instance, (folder / "daemon.log").open("wb") as log:
        form = ProbeFormat(format="text")
        probe_set = register(probes, format=form, folder=layout.probes_path(), shard_rows=PROBES_A_PARTITION)
        add_partitions(instance, probe_set)
        assert definitions.resolve_job_def("build_engine").execute_in_process(instance=instance).success
        started = time.monotonic()
        work = backfills.to_do(instance)
        seconds_to_plan = time.monotonic() - started
        assert len(work.parts) == partitions, work.reason
        [backfill_id] = backfills.start(instance, definitions.get_repository_def().asset_graph, work)
        with running_daemon(layout.home() / "dagster", {}, log):
            started = time.monotonic()
            status = _ended(instance, backfill_id)
            seconds = time.monotonic() - started
        started = time.monotonic()
        left = backfills.to_do(instance)
        seconds_to_find_nothing = time.monotonic() - started
        assert not left.parts, left.reason
        runs = _runs(instance, backfill_id)
        steps = _steps(instance, runs)
        computing = _seconds_of_extraction(instance)
        return {
            "partitions": partitions,
            "probes_a_partition": PROBES_A_PARTITION,
            "backfill": status,
            "runs": dict(Counter(run.status.value for run in runs)),
            "lock_errors": _lock_errors(folder, instance, runs),
            "seconds": round(seconds, 1),
            "seconds_per_partition": round(seconds / partitions, 3),
            "step_seconds_per_partition": {name: round(s / partitions, 4) for name, s in steps.items()},
            "hidden_states_extraction_seconds_per_partition": round(computing / partitions, 5),
            "hidden_states_overhead_seconds_per_partition": round((steps["hidden_states"] - computing) / partitions, 4),
            "seconds_to_find_everything_missing": round(seconds_to_plan, 2),
            "seconds_to_find_nothing_missing": round(seconds_to_find_nothing, 2),
            "unchanged_again": _again(definitions, instance, work.parts[: int(os.environ["FABRIC_PARTITIONS_A_RUN"])]),
            "dagster_home_mb": round(_bytes(layout.home() / "dagster") / 1e6, 1),
            "lake_mb": round(_bytes(layout.lake_path()) / 1e6, 1),
        }


def _ended(instance: Any, backfill_id: str) -> str:
    """The backfill's last status; says how far it is."""
    said = time.monotonic()
    while (status := instance.get_backfill(backfill_id).status.value) in ("REQUESTED", "CANCELING", "FAILING"):
        time.sleep(1)
        if time.monotonic() - said > 30:
            said = time.monotonic()
            print(Counter(run.status.value for run in _runs(instance, backfill_id)), file=sys.stderr)
    return status


def _runs(instance: Any, backfill_id: str) -> list[Any]:
    import dagster as dg

    return list(instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill_id})))


def _steps(instance: Any, runs: list[Any]) -> dict[str, float]:
    """Seconds of each step, of all runs together."""
    seconds: Counter[str] = Counter()
    for run in runs:
        for step in instance.get_run_step_stats(run.run_id):
            seconds[step.step_key] += step.end_time - step.start_time
    return dict(sorted(seconds.items()))


def _seconds_of_extraction(instance: Any) -> float:
    """What the engine itself took, of all partitions together."""
    import dagster as dg

    total, cursor, more = 0.0, None, True
    while more:
        page = instance.fetch_materializations(dg.AssetKey("hidden_states"), limit=1000, cursor=cursor)
        total += sum(float(r.asset_materialization.metadata["seconds"].value) for r in page.records)
        cursor, more = page.cursor, page.has_more
    return total


def _lock_errors(folder: Path, instance: Any, runs: list[Any]) -> int:
    """Lines of the daemon's output and of the runs' logs that speak of a locked database."""
    import dagster as dg

    lines = (folder / "daemon.log").read_text(errors="replace").splitlines()
    for run in runs:
        for record in instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records:
            lines.append(str(record.event_log_entry))
    return sum(any(error in line for error in LOCK_ERRORS) for line in lines)


def _again(definitions: Any, instance: Any, parts: list[str]) -> dict[str, Any]:
    """One run of partitions that have not changed, in this process."""
    tags = {"dagster/asset_partition_range_start": parts[0], "dagster/asset_partition_range_end": parts[-1]}
    started = time.monotonic()
    result = definitions.resolve_job_def("extract").execute_in_process(instance=instance, tags=tags)
    seconds = time.monotonic() - started
    stats = instance.get_run_step_stats(result.run_id)
    steps = {s.step_key: round((s.end_time - s.start_time) / len(parts), 4) for s in stats}
    return {
        "partitions": len(parts),
        "success": result.success,
        "seconds_per_partition": round(seconds / len(parts), 3),
        "step_seconds_per_partition": dict(sorted(steps.items())),
    }


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
