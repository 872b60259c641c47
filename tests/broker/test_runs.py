"""Partitions through a real broker and a real worker, to vectors in the lake."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("dagster_celery", reason="needs the extra `cluster`")

import dagster as dg

from fabric_assets.instance import open_instance
from io_managers.reading import read_engine, read_hidden_states
from io_managers.stored_rows import stored_records
from io_managers.tables import ATTESTATIONS
from resources.broker.app import QueueState
from tests.broker.cluster import Cluster, agree_on_engine, make_home
from tests.broker.conftest import LINES
from tests.broker.rabbitmq import RabbitMQ
from tests.object_store import object_store


def test_partitions_become_vectors_that_name_the_worker_and_its_contract(cluster: Cluster) -> None:
    worker = cluster.worker()
    worker.wait_for("serves")

    runs = cluster.run("set.00000", "set.00001...set.00005")

    assert [outcome["success"] for outcome in runs.outcomes()] == [True, True]
    ids, vectors = read_hidden_states(lake=cluster.lake)
    assert sorted(ids["probe_id"]) == sorted(f"set.txt:{row}" for row in range(24))
    assert len({vector.tobytes() for vector in vectors}) == 24
    [attestation] = stored_records(cluster.lake, ATTESTATIONS, {})
    assert set(ids["attestation_id"]) == {attestation["attestation_id"]}
    assert attestation["contract"] == cluster.contract.digest
    assert str(worker.popen.pid) in attestation["worker"]
    with patch.dict(os.environ, FABRIC_HOME=str(cluster.home)), open_instance() as instance:
        shown = instance.get_latest_materialization_event(dg.AssetKey("hidden_states")).asset_materialization.metadata
    assert shown["attested_by"].value["worker"] == attestation["worker"]
    assert cluster.state() == QueueState(waiting=0, consumers=1)
    assert worker.stop() == 0


def test_a_run_says_that_nobody_serves_its_queue_and_ends_at_its_limit(cluster: Cluster) -> None:
    [outcome] = cluster.run("set.00000", wait_s=3.0).outcomes()

    assert not outcome["success"]
    sentence = f"no attested worker serves the queue {cluster.contract.queue} (1 steps wait)"
    assert [sentence in warning for warning in outcome["warnings"]] == [True]
    assert any(sentence in error and "the limit, `wait_s`, is 3 s" in error for error in outcome["errors"])
    worker = cluster.worker()
    worker.wait_for("its run is FAILURE")
    assert cluster.state() == QueueState(waiting=0, consumers=1)
    assert not (cluster.lake / "hidden_states").exists()


@pytest.mark.soak
def test_without_a_contract_nothing_is_sent(cluster: Cluster) -> None:
    [outcome] = cluster.run("set.00000", FABRIC_CONTRACT=str(cluster.folder / "none.json")).outcomes()

    assert not outcome["success"]
    assert any("this code location has no contract" in error for error in outcome["errors"])
    assert cluster.state() == QueueState(0, 0)


@pytest.mark.soak
def test_a_new_engine_takes_over_beside_the_old_one_and_neither_takes_the_other_s_work(cluster: Cluster) -> None:
    old = cluster.folder / "old.json"
    old.write_bytes((cluster.home / "contract.json").read_bytes())
    first, first_dir = cluster.contract, cluster.engine_dir
    agree_on_engine(cluster.folder, settings_of(cluster) | {"max_batch_size": 8})
    second = cluster.contract
    assert first.queue != second.queue
    cluster.worker(first_dir, "--contract", str(old), name="old").wait_for("serves")
    cluster.worker(name="new").wait_for("serves")

    runs = [
        cluster.run("set.00000", name="run-old", FABRIC_CONTRACT=str(old)),
        cluster.run("set.00001", name="run-new"),
    ]

    assert [outcome["success"] for run in runs for outcome in run.outcomes()] == [True, True]
    for part, agreed in (("set.00000", first), ("set.00001", second)):
        ids, _ = read_hidden_states(part, lake=cluster.lake)
        assert set(ids["engine_id"]) == {agreed.engine_id}


@pytest.mark.soak
def test_workers_store_on_an_object_store(made_home: Path, rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """The engine is registered, tokens and vectors are stored and checks read them, all in a bucket."""
    pytest.importorskip("moto", reason="needs the extra `object-store-tests`")
    with object_store("lake") as environment, patch.dict(os.environ, environment, FABRIC_LAKE="s3://lake/of/fabric"):
        make_home(tmp_path, lines=LINES, shard_rows=4)
        cluster = Cluster(tmp_path, rabbitmq)
        try:
            engine = read_engine("s3://lake/of/fabric", engine_id=cluster.contract.engine_id)
            cluster.worker(cluster.home / "engines" / engine.directory).wait_for("serves")
            outcomes = cluster.run("set.00000", "set.00001...set.00005").outcomes()
        finally:
            cluster.close()
        assert [outcome["success"] for outcome in outcomes] == [True, True]
        ids, _ = read_hidden_states(lake="s3://lake/of/fabric")
    assert sorted(ids["probe_id"]) == sorted(f"set.txt:{row}" for row in range(24))
    assert not any((cluster.home / "lake").rglob("*"))


def settings_of(cluster: Cluster) -> dict[str, Any]:
    """The model's settings with which its home was made."""
    return json.loads((cluster.folder / "run.json").read_text())["resources"]["model"]["config"]
