"""A step that lasts FABRIC_TEST_STEP_S seconds (90 if unset) is delivered once, with RabbitMQ set as the page says.

Only the engine is slow: worker, gate, broker, event log and store are the real ones. The broker itself counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path

import pytest

pytest.importorskip("dagster_celery", reason="needs the extra `cluster`")

from io_managers.open_tables import open_table, table_path
from io_managers.reading import read_hidden_states
from io_managers.tables import HIDDEN_STATES
from tests.broker.cluster import Cluster, Process, copy_home, make_home, wait_until
from tests.broker.page import block
from tests.broker.rabbitmq import RabbitMQ

pytestmark = pytest.mark.soak

STEP_S = float(os.environ.get("FABRIC_TEST_STEP_S", "90"))
ROWS = 160
MOST_SEQUENCES = 4
"""Of a batch, so that there are at least ROWS / MOST_SEQUENCES of them."""
PART = "set.00000"
SHORT_S = 15.0
"""A step's length where consumer_timeout is 5 s."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hour")
    lines = [f"line {number} of the set" for number in range(ROWS)]
    make_home(folder, lines=lines, shard_rows=ROWS, model={"max_batch_size": MOST_SEQUENCES})
    return folder


@pytest.fixture
def cluster_with(made: Path, tmp_path: Path) -> Iterator[Callable[[str, str], Cluster]]:
    """A home, and a broker with these settings and arguments (as `RabbitMQ`) that counts messages."""
    started: list[Cluster] = []

    def start(settings: str, arguments: str) -> Cluster:
        broker = RabbitMQ(tmp_path / "rabbitmq", settings=settings, arguments=arguments, counting=True).start()
        started.append(Cluster(copy_home(made, tmp_path / "cluster"), broker))
        return started[-1]

    yield start
    for cluster in started:
        cluster.close()
        cluster.broker.stop()


def start_slow_worker(cluster: Cluster, step_s: float) -> Process:
    """One with which the partition takes `step_s` seconds or a little more."""
    seconds = step_s / (ROWS / MOST_SEQUENCES)
    command = ["-m", "tests.broker.slow_worker", str(seconds), "--engine", str(cluster.engine_dir)]
    worker = cluster.start(command, "worker")
    worker.wait_for("serves")
    return worker


def assert_stored_in_one_commit(cluster: Cluster) -> None:
    ids, _ = read_hidden_states(lake=cluster.lake)
    assert sorted(ids["probe_id"]) == sorted(f"set.txt:{row}" for row in range(ROWS))
    table = open_table(table_path(cluster.lake, HIDDEN_STATES, cluster.contract.work.model_key))
    assert table is not None
    assert [entry["operation"] for entry in table.history()].count("WRITE") == 1


@pytest.mark.timeout(STEP_S + 600)
def test_a_long_step_is_delivered_once(
    cluster_with: Callable[[str, str], Cluster], record_testsuite_property: Callable[[str, object], None]
) -> None:
    cluster = cluster_with(block("consumer_timeout"), "")
    worker = start_slow_worker(cluster, STEP_S)

    [outcome] = cluster.run(PART).outcomes(patience_s=STEP_S + 300)

    wait_until(lambda: cluster.broker.messages().acknowledged > 0)
    messages = cluster.broker.messages()
    record_testsuite_property("asked_step_s", STEP_S)
    record_testsuite_property("step_s", outcome["step_s"])
    record_testsuite_property("step_starts", outcome["starts"])
    record_testsuite_property("rabbitmq", cluster.broker.version)
    record_testsuite_property("rabbitmq_conf", block("consumer_timeout").splitlines()[-1])
    record_testsuite_property("messages", f"{messages}")
    assert outcome["success"]
    assert outcome["step_s"] >= STEP_S
    assert outcome["starts"] == 1
    assert astuple(messages) == (1, 0, 1)
    assert worker.said().count("hidden_states of run") == 2  # its start and ": done"
    assert "timed out" not in cluster.broker.said()
    assert_stored_in_one_commit(cluster)
    assert worker.stop() == 0


def test_with_a_consumer_timeout_below_the_step_the_broker_delivers_it_again(
    cluster_with: Callable[[str, str], Cluster],
) -> None:
    """That the counts above can tell: the same step, with the setting that the page warns of."""
    cluster = cluster_with("consumer_timeout = 5000", "-rabbit channel_tick_interval 1000")
    worker = start_slow_worker(cluster, SHORT_S)

    [outcome] = cluster.run(PART).outcomes()

    assert outcome["success"]
    assert worker.popen.wait(timeout=60) == 1
    assert "timed out" in cluster.broker.said()
    start_slow_worker(cluster, SHORT_S).wait_for("its run is SUCCESS")
    wait_until(lambda: cluster.broker.messages().acknowledged > 0)
    assert astuple(cluster.broker.messages()) == (2, 1, 1)
    assert_stored_in_one_commit(cluster)
