"""Partitions through a real broker and a real worker, to vectors in the lake."""

from __future__ import annotations

import pytest

pytest.importorskip("dagster_celery", reason="needs the extra `cluster`")

from io_managers.reading import read_hidden_states
from io_managers.stored_rows import stored_records
from io_managers.tables import ATTESTATIONS
from resources.broker.app import QueueState
from tests.broker.cluster import Cluster


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
    assert cluster.state() == QueueState(waiting=0, consumers=1)
    assert worker.stop() == 0


def test_a_run_says_that_nobody_serves_its_queue_and_ends_at_its_limit(cluster: Cluster) -> None:
    [outcome] = cluster.run("set.00000", wait_s=3.0).outcomes()

    assert not outcome["success"]
    sentence = f"no attested worker serves the queue {cluster.contract.queue} (1 steps wait)"
    assert [sentence in warning for warning in outcome["warnings"]] == [True]
    assert any(sentence in error and "this lasted for 3 s" in error for error in outcome["errors"])
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
