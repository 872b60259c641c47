"""Work through RabbitMQ and the gate: what a partition costs more than in one process, tokens/s of a long run, and
several workers against one. Writes results/broker.json (or --result).

Every measure has a home of its own, copied from one whose inputs are tokenised already, so that what is timed is what
goes through the broker: from the first start of the step that needs an engine to the last commit. The peak is the best
10 s of that; a partition's tokens are spread evenly from the commit before it, by the same run, to its own.

RabbitMQ is the one that `make broker` unpacks. A machine without a network gets a copy of `.rabbitmq/debs`, and then
`tests/broker/unpack_rabbitmq.sh .rabbitmq` unpacks it there; Python's packages are those of the extra `cluster`.

usage: python benchmarks/broker.py [--tokens 10800000] [--workers 1 2] [--gpus] [--model PATH] [--backend tensorrt] ...
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
WINDOW_S = 10.0
SMALL_PARTS, SMALL_ROWS = 6, 20
LIMIT_S = 3600.0


def main() -> None:
    """Measures all of it and writes the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_800_000, help="Of the long run, at least.")
    parser.add_argument("--lengths", type=int, nargs=2, default=[8, 120], help="Shortest and longest sequence.")
    parser.add_argument("--part-tokens", type=int, default=400_000, help="Of one partition of the long run, about.")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="How many, one measure for each.")
    parser.add_argument("--gpus", action="store_true", help="Each worker has a GPU of its own.")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of one worker.")
    parser.add_argument("--model", default=None, help="A checkpoint; unset: a tiny random one.")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--max-batch-tokens", type=int, default=4096)
    parser.add_argument("--max-batch-size", type=int, default=128)
    parser.add_argument("--engines", type=Path, default=None, help="A folder of engines, to spare their builds.")
    parser.add_argument("--made", type=Path, default=None, help="Where the inputs lie; made if they do not. Kept.")
    parser.add_argument("--make-only", action="store_true", help="Only make the inputs.")
    parser.add_argument("--no-overhead", action="store_true", help="Leave out what a partition costs more.")
    parser.add_argument("--result", default="broker.json", help="Name of the result file.")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory(dir=os.environ.get("FABRIC_BENCH_DIR")) as folder:
        made = arguments.made or Path(folder) / "made"
        sizes = _inputs(made, arguments)
        if arguments.make_only:
            return
        result = describe() | _measure(Path(folder), made, sizes, arguments)
    (RESULTS / arguments.result).write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def _inputs(made: Path, arguments: argparse.Namespace) -> dict[str, int]:
    """The sizes of the long run in `made`, which is made if it is not there yet."""
    written = made / "sizes.json"
    if not written.exists():
        made.mkdir(parents=True)
        written.write_text(json.dumps(_make_home(made, arguments)))
    return dict(json.loads(written.read_text()))


def _measure(folder: Path, made: Path, sizes: dict[str, int], arguments: argparse.Namespace) -> dict[str, Any]:
    from tests.broker.rabbitmq import RabbitMQ

    broker = RabbitMQ(folder / "rabbitmq").start()
    try:
        return {
            "engine": f"{arguments.model or 'random llama, hidden 64, 2 layers'}, {arguments.precision}, "
            f"{arguments.backend}, {arguments.threads} CPU threads a worker",
            "long_run": sizes,
            "overhead": None if arguments.no_overhead else _overhead(folder, made, broker, arguments),
            "through_the_broker": [_throughput(folder, made, broker, arguments, n) for n in arguments.workers],
        }
    finally:
        broker.stop()


def _make_home(made: Path, arguments: argparse.Namespace) -> dict[str, int]:
    """A home with an engine, its contract, and two sets of tokenised partitions: `small` and `long`."""
    from fabric_assets.cli import fabric as command_line
    from tests.broker.cluster import agree_on_engine
    from tests.tiny import tiny_gguf

    checkpoint = arguments.model or str(tiny_gguf(made / "tiny.gguf"))
    settings = {
        "checkpoint": checkpoint,
        "max_input_len": max(arguments.lengths),
        "max_num_tokens": arguments.max_batch_tokens,
        "max_batch_size": arguments.max_batch_size,
    }
    (made / "run.json").write_text(json.dumps({"resources": {"model": {"config": settings}}}))
    if arguments.engines is not None:
        shutil.copytree(arguments.engines, made / "home" / "engines")
    agree_on_engine(made, settings, backend=arguments.backend, precision=arguments.precision)
    rng = np.random.default_rng(1)
    rows_a_part = max(1, 2 * arguments.part_tokens // sum(arguments.lengths))
    parts = -(-arguments.tokens // arguments.part_tokens) + 1
    tokens = _write_probes(made / "long.jsonl", rows_a_part * parts, arguments.lengths, rng)
    _write_probes(made / "small.jsonl", SMALL_ROWS * SMALL_PARTS, arguments.lengths, rng)
    os.environ["FABRIC_HOME"] = str(made / "home")
    for name, rows, count in (("long", rows_a_part, parts), ("small", SMALL_ROWS, SMALL_PARTS)):
        options = ["--token-ids-field", "token_ids", "--name", name, "--shard-rows", str(rows)]
        command_line.main(["register", str(made / f"{name}.jsonl"), *options], standalone_mode=False)
        _tokenise(settings, f"{name}.00000", f"{name}.{count - 1:05d}")
    return {"tokens": tokens, "sequences": rows_a_part * parts, "partitions": parts}


def _tokenise(settings: dict[str, Any], first: str, last: str) -> None:
    """Makes everything that a partition's vectors are made of, in this process."""
    import dagster as dg

    from fabric_assets.definitions import defs
    from fabric_assets.instance import open_instance

    assets = ("probe_sets", "tokenised_batches", "work_items", "extraction_requests")
    job = dg.define_asset_job("prepare", selection=dg.AssetSelection.assets(*assets))
    with open_instance() as instance:
        result = (
            dg.Definitions.merge(defs(), dg.Definitions(jobs=[job]))
            .resolve_job_def("prepare")
            .execute_in_process(
                instance=instance,
                run_config={"resources": {"model": {"config": settings}}},
                tags={"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last},
            )
        )
    assert result.success


def _write_probes(path: Path, rows: int, lengths: list[int], rng: np.random.Generator) -> int:
    """Probes of given token ids, all different; how many tokens they have."""
    sizes = rng.integers(lengths[0], lengths[1] + 1, rows)
    with open(path, "w") as out:
        for row, size in enumerate(sizes):
            ids = rng.integers(3, 250, size)
            out.write(json.dumps({"id": str(row), "token_ids": ids.tolist()}) + "\n")
    return int(sizes.sum())


def _parts(name: str, count: int) -> list[str]:
    return [f"{name}.{number:05d}" for number in range(count)]


def _overhead(folder: Path, made: Path, broker: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a run of one small partition, the first left out, and of a partition in one run over all of them."""
    from tests.broker.cluster import Cluster, copy_home

    seen: dict[str, Any] = {"rows_a_partition": SMALL_ROWS, "runs": SMALL_PARTS - 1}
    for way, environment in (("in_process", {"FABRIC_BROKER": ""}), ("broker", {})):
        cluster = Cluster(copy_home(made, folder / way), broker, {"FABRIC_THREADS": str(arguments.threads)})
        if way == "broker":
            cluster.worker(None, *_device(arguments, 0)).wait_for("serves")
        one_by_one = cluster.run(*_parts("small", SMALL_PARTS), name="single", **environment).outcomes(LIMIT_S)
        again = Cluster(copy_home(made, folder / f"{way}-range"), broker, cluster.environment)
        if way == "broker":
            cluster.close()
            again.worker(None, *_device(arguments, 0)).wait_for("serves")
        both = (f"{_parts('small', SMALL_PARTS)[0]}", f"small.00000...small.{SMALL_PARTS - 1:05d}")
        ranged = again.run(*both, name="range", **environment).outcomes(LIMIT_S)
        assert all(outcome["success"] for outcome in [*one_by_one, *ranged])
        seen[f"{way}_s_a_run_of_one_partition"] = round(statistics.median(o["seconds"] for o in one_by_one[1:]), 3)
        seen[f"{way}_s_a_partition_of_one_run_over_all"] = round(ranged[1]["seconds"] / (SMALL_PARTS - 1), 3)
        cluster.close()
        again.close()
    for what in ("s_a_run_of_one_partition", "s_a_partition_of_one_run_over_all"):
        seen[f"overhead_{what}"] = round(seen[f"broker_{what}"] - seen[f"in_process_{what}"], 3)
    return seen


def _throughput(folder: Path, made: Path, broker: Any, arguments: argparse.Namespace, workers: int) -> dict[str, Any]:
    """The long run with that many workers, and a run process for each."""
    from io_managers.stored_rows import stored_records
    from io_managers.tables import ATTESTATIONS, WORK_ITEMS
    from tests.broker.cluster import Cluster, copy_home

    cluster = Cluster(
        copy_home(made, folder / f"workers-{workers}"), broker, {"FABRIC_THREADS": str(arguments.threads)}
    )
    _allow(cluster, workers)
    started = [cluster.worker(None, *_device(arguments, n), name=f"worker-{n}") for n in range(workers)]
    for worker in started:
        worker.wait_for("serves")
    tokens: dict[str, int] = {}
    for row in stored_records(cluster.lake, WORK_ITEMS, {}):
        if row["part"].startswith("long."):
            tokens[row["part"]] = tokens.get(row["part"], 0) + row["n_tokens"]
    shares = [list(share) for share in np.array_split(sorted(tokens), workers)]
    runs = [cluster.run(f"{share[0]}...{share[-1]}", name=f"run-{n}") for n, share in enumerate(shares)]
    outcomes = [outcome for run in runs for outcome in run.outcomes(LIMIT_S)]
    assert all(outcome["success"] for outcome in outcomes), outcomes
    spans = _spans(cluster, tokens)
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    total = sum(tokens.values())
    attestations = list(stored_records(cluster.lake, ATTESTATIONS, {}))
    cluster.close()
    return {
        "workers": workers,
        "tokens": total,
        "seconds": round(last - first, 2),
        "average_tokens_per_second": round(total / (last - first)),
        f"peak_tokens_per_second_of_{WINDOW_S:.0f}_s": round(_peak(spans)),
        "partitions": len(tokens),
        "workers_that_stored": len(attestations),
        "contract": attestations[0]["contract"],
        "device": attestations[0]["device"],
    }


def _allow(cluster: Any, workers: int) -> None:
    """As many steps at once as there are workers: `dagster instance concurrency set gpu N`."""
    import dagster as dg

    with dg.DagsterInstance.from_config(str(cluster.home / "dagster")) as instance:
        instance.event_log_storage.set_concurrency_slots("gpu", workers)


def _spans(cluster: Any, tokens: dict[str, int]) -> list[tuple[float, float, int]]:
    """Of each partition: when its work began (the commit before it, or its step's start), its commit, its tokens."""
    import dagster as dg

    from io_managers.open_tables import open_table, table_path
    from io_managers.tables import HIDDEN_STATES

    os.environ["FABRIC_HOME"] = str(cluster.home)
    table = open_table(table_path(cluster.lake, HIDDEN_STATES, cluster.contract.work.model_key))
    commits: dict[str, list[tuple[float, str]]] = {}
    for entry in table.history():
        if entry["operation"] == "WRITE" and entry["part"] in tokens:
            commits.setdefault(entry["run_id"], []).append((entry["timestamp"] / 1000, entry["part"]))
    spans = []
    with dg.DagsterInstance.from_config(str(cluster.home / "dagster")) as instance:
        for run_id, stored in commits.items():
            steps = instance.get_run_step_stats(run_id, ["hidden_states"])
            before = float(steps[0].start_time or stored[0][0])
            for at, part in sorted(stored):
                spans.append((before, at, tokens[part]))
                before = at
    return spans


def _peak(spans: list[tuple[float, float, int]]) -> float:
    """Tokens/s of the best window; of all of it where that is shorter."""
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    if last - first <= WINDOW_S:
        return sum(span[2] for span in spans) / (last - first)
    starts = np.arange(first, last - WINDOW_S, 0.05)
    done = sum(
        n * np.clip((np.minimum(starts + WINDOW_S, end) - np.maximum(starts, begin)) / (end - begin), 0, 1)
        for begin, end, n in spans
    )
    return float(np.max(done)) / WINDOW_S


def _device(arguments: argparse.Namespace, number: int) -> list[str]:
    return ["--gpu", str(number)] if arguments.gpus else []


if __name__ == "__main__":
    main()
