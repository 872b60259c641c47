"""Nobody who does not meet the contract takes a message: real workers, a real broker, a message that waits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

pytest.importorskip("dagster_celery", reason="needs the extra `cluster`")

from io_managers import tables
from io_managers.delta_table import PartitionWrite, write_partition
from io_managers.stored_rows import stored_records
from resources.broker.app import QueueState, broker_app, send_step
from resources.broker.gate import REFUSED
from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.engine.build import build_engine
from resources.records import Limits, digest
from tests import zoo
from tests.broker.cluster import MODEL, Cluster, agree_on_engine, run_here
from tests.tiny import tiny_gguf

LIMITS = Limits(MODEL["max_batch_size"], MODEL["max_num_tokens"], MODEL["max_input_len"])
WRONG = sorted(kind for kind, spec in zoo.KINDS.items() if spec.reasons != {"proved"})
ONE_OF_EACH = sorted({tuple(sorted(zoo.KINDS[kind].reasons)): kind for kind in WRONG}.values())


def start_workers(cluster: Cluster, engines: list[Path]) -> dict[str, str]:
    """Starts a worker with each engine while a message waits; what each said. None may take the message."""
    send_step(broker_app(cluster.broker.url), cluster.contract.queue, {"not": "an order"})
    process = cluster.start(["-m", "tests.broker.many_workers", *map(str, engines)], "workers")
    assert process.popen.wait(timeout=600) == 0, process.said()
    said = {part.partition("\n")[0]: part for part in process.said().split("BEGIN ")[1:]}
    assert [words for words in said.values() if f"EXIT {REFUSED}" not in words] == []
    assert cluster.state() == QueueState(waiting=1, consumers=0)
    return said


@pytest.mark.parametrize("kinds", [ONE_OF_EACH, pytest.param(WRONG, marks=pytest.mark.soak)], ids=["few", "all"])
def test_no_engine_of_the_zoo_that_is_wrong_takes_a_message(cluster: Cluster, tmp_path: Path, kinds: list[str]) -> None:
    for kind in kinds:
        zoo.write_engine(kind, tmp_path / kind)

    said = start_workers(cluster, [tmp_path / kind for kind in kinds])

    for kind in kinds:
        assert any(f"is refused ({reason})" in said[str(tmp_path / kind)] for reason in zoo.KINDS[kind].reasons)


def test_a_proved_engine_that_does_not_meet_the_contract_takes_no_message(cluster: Cluster, tmp_path: Path) -> None:
    """Another width, another tokenizer, too small for the work items: each says which clauses failed, and no others."""
    mine = cluster.folder / "tiny.gguf"
    made = {
        "hidden size": _build(tiny_gguf(tmp_path / "narrow.gguf", hidden=32), tmp_path),
        "tokenizer": _build(mine, tmp_path, policy=TokenizerPolicy(add_eos=True)),
        "tokens in a batch": _build(mine, tmp_path, limits=replace(LIMITS, max_num_tokens=48)),
        "sequences in a batch": _build(mine, tmp_path, limits=replace(LIMITS, max_batch_size=11)),
        "tokens in a sequence": _build(mine, tmp_path, limits=replace(LIMITS, max_input_len=20)),
    }

    said = start_workers(cluster, list(made.values()))

    for clause, engine in made.items():
        failed = [line.split(": ")[1] for line in said[str(engine)].splitlines() if "  FAILED: " in line]
        assert clause in failed
        assert set(failed) <= {clause, "engine", "model key"}


def test_a_build_that_does_not_reproduce_the_stored_vectors_takes_no_message(cluster: Cluster) -> None:
    settings = json.loads((cluster.folder / "run.json").read_text())["resources"]["model"]["config"]
    run_here(cluster.folder, "extract", settings, "set.00000")
    _negate_vectors(cluster, "set.00000")
    agree_on_engine(cluster.folder, settings | {"max_batch_size": 8})

    [said] = start_workers(cluster, [cluster.engine_dir]).values()

    [failed] = [line for line in said.splitlines() if "  FAILED: " in line]
    assert "canary vectors: saw at most 2 away, expected within 0.001 of the registered vectors" in failed


def test_a_worker_without_a_contract_or_a_broker_says_which(cluster: Cluster) -> None:
    (cluster.home / "contract.json").rename(cluster.home / "elsewhere.json")
    for environment, said in (({}, "there is no contract at"), ({"FABRIC_BROKER": ""}, "FABRIC_BROKER is not set")):
        worker = cluster.worker(cluster.home / "engines", **environment)
        assert worker.popen.wait(timeout=60) == 1
        assert said in worker.said()


def _build(checkpoint: Path, folder: Path, *, limits: Limits = LIMITS, policy: TokenizerPolicy | None = None) -> Path:
    opened = open_checkpoint(str(checkpoint))
    record = build_engine(
        opened,
        opened.tokenizer(policy or TokenizerPolicy(max_tokens=LIMITS.max_input_len)),
        folder,
        backend="onnxruntime",
        precision="float32",
        limits=limits,
    )
    return folder / record.directory


def _negate_vectors(cluster: Cluster, part: str) -> None:
    """Stores the opposite of every vector, with the hashes of those."""
    spec, key = tables.HIDDEN_STATES, cluster.contract.work.model_key
    rows = list(stored_records(cluster.lake, spec, {"part": part}, model_key=key))
    for row in rows:
        row["payload"] = (-np.frombuffer(row["payload"], dtype="<f4")).tobytes()
        row["payload_xxh3"] = xxhash.xxh3_128_digest(row["payload"])
    batch = pa.RecordBatch.from_pylist(rows, schema=spec.schema)
    write = PartitionWrite({"part": part}, digest([b"opposite"]), len(rows), lambda: iter([batch]), {})
    write_partition(cluster.lake, spec, write, model_key=key)
