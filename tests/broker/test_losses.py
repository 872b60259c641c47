"""Workers and brokers that die at the worst moment: no row lost, none twice, and every run ends.

A partition here takes some seconds, so that there is a middle to be killed in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("dagster_celery", reason="needs the extra `cluster`")

from dagster._core.definitions.reconstruct import ReconstructableRepository

from fabric_assets.instance import open_instance
from io_managers.open_tables import open_table, table_path
from io_managers.reading import read_hidden_states
from io_managers.tables import HIDDEN_STATES
from resources.broker.app import QueueState, broker_app, send_step
from resources.broker.gate import REFUSED
from resources.broker.steps import MOST_STARTS, order_step
from resources.dagster_internals import RetryMode
from tests.broker.cluster import ROOT, Cluster, Process, copy_home, make_home, wait_until
from tests.broker.rabbitmq import RabbitMQ

pytestmark = pytest.mark.soak

ROWS = 60_000
PART, OTHER = "set.00000", "set.00001"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    make_home(folder, lines=[f"row {number} of {number % 977}" for number in range(2 * ROWS)], shard_rows=ROWS)
    return folder


@pytest.fixture(params=[("", "")], ids=[""])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RabbitMQ]:
    """One of its own for each test: it is killed in some, and others set it up in their own way."""
    settings, arguments = request.param
    broker = RabbitMQ(tmp_path / "rabbitmq", settings=settings, arguments=arguments).start()
    yield broker
    broker.stop()


@pytest.fixture
def slow(made: Path, broker: RabbitMQ, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(copy_home(made, tmp_path / "cluster"), broker)
    yield cluster
    cluster.close()


def start_worker(cluster: Cluster, name: str = "worker") -> Process:
    worker = cluster.worker(name=name)
    worker.wait_for("serves")
    return worker


def wait_for_the_middle(cluster: Cluster) -> None:
    """Until some vectors of a partition are written and none is committed."""
    folder = cluster.lake / "hidden_states"
    wait_until(lambda: any(file.stat().st_size > 1 << 20 for file in folder.rglob("*.parquet.tmp")))


def assert_every_row_once(cluster: Cluster, parts: tuple[str, ...] = (PART,), *, commits: int | None = None) -> None:
    ids, _ = read_hidden_states(lake=cluster.lake)
    expected = {f"set.txt:{row}" for part in parts for row in range(ROWS * int(part[-1]), ROWS * (int(part[-1]) + 1))}
    assert len(ids) == ROWS * len(parts)
    assert set(ids["probe_id"]) == expected
    table = open_table(table_path(cluster.lake, HIDDEN_STATES, cluster.contract.work.model_key))
    writes = [entry for entry in table.history() if entry["operation"] == "WRITE"]
    assert len(writes) == (len(parts) if commits is None else commits)


def test_a_worker_killed_in_mid_partition_loses_and_doubles_nothing(slow: Cluster) -> None:
    first = start_worker(slow, "first")
    run = slow.run(PART)
    wait_for_the_middle(slow)
    first.kill()
    second = start_worker(slow, "second")

    [outcome] = run.outcomes()

    assert (outcome["success"], outcome["starts"]) == (True, 2)
    assert_every_row_once(slow)
    assert second.stop() == 0


def test_a_killed_worker_s_partition_goes_to_one_that_waits(slow: Cluster) -> None:
    first = start_worker(slow, "first")
    run = slow.run(PART)
    first.wait_for("hidden_states of run")
    second = start_worker(slow, "second")
    wait_for_the_middle(slow)
    first.kill()

    assert [outcome["success"] for outcome in run.outcomes()] == [True]
    assert_every_row_once(slow)
    assert "done" in second.said()


def test_a_worker_that_is_stopped_ends_its_step_first(slow: Cluster) -> None:
    worker = start_worker(slow)
    run = slow.run(PART)
    wait_for_the_middle(slow)
    worker.popen.terminate()

    [outcome] = run.outcomes()

    assert (outcome["success"], outcome["starts"]) == (True, 1)
    assert worker.popen.wait(timeout=60) == 0
    assert_every_row_once(slow)
    start_worker(slow, "next")
    wait_until(lambda: slow.state() == QueueState(0, 1))
    assert_every_row_once(slow)


def test_a_worker_that_looks_at_another_dagster_instance_gives_the_step_back_and_ends(slow: Cluster) -> None:
    elsewhere = copy_home(slow.home, slow.folder / "elsewhere")
    worker = slow.worker(slow.engine_dir, name="stranger", FABRIC_HOME=str(elsewhere))
    worker.wait_for("serves")
    run = slow.run(PART)

    assert worker.popen.wait(timeout=120) == REFUSED
    assert "is not in this worker's Dagster instance" in worker.said()
    wait_until(lambda: slow.state() == QueueState(1, 0))
    start_worker(slow)
    assert [outcome["success"] for outcome in run.outcomes()] == [True]
    assert_every_row_once(slow)


def test_a_message_delivered_again_after_success_does_nothing(slow: Cluster) -> None:
    worker = start_worker(slow)
    [outcome] = slow.run(PART).outcomes()
    before = slow.lake_state()

    send_again(slow, outcome["run_id"])

    worker.wait_for("its run is SUCCESS")
    assert slow.state() == QueueState(0, 1)
    assert slow.lake_state() == before
    assert_every_row_once(slow)


def test_two_workers_with_the_same_partition_make_one_commit(slow: Cluster) -> None:
    workers = [start_worker(slow, name) for name in ("left", "right")]
    run = slow.run(PART)
    wait_until(lambda: any("hidden_states of run" in worker.said() for worker in workers))
    [run_id] = {
        line.split()[3] for w in workers for line in w.said().splitlines() if line.startswith("hidden_states of")
    }
    send_again(slow, run_id)
    for worker in workers:
        worker.wait_for("hidden_states of run")
    wait_for_the_middle(slow)

    assert [outcome["success"] for outcome in run.outcomes()] == [True]
    for worker in workers:
        worker.wait_for(": done")
    assert_every_row_once(slow, commits=1)


def test_a_partition_that_ends_every_worker_fails_and_stops_no_other(slow: Cluster) -> None:
    run = slow.run(PART, name="poisoned")
    for number in range(MOST_STARTS):
        worker = start_worker(slow, f"victim-{number}")
        wait_until(lambda w=worker: "hidden_states of run" in w.said())
        wait_for_the_middle(slow)
        worker.kill()
        for left in (slow.lake / "hidden_states").rglob("*.parquet.tmp"):
            left.unlink()
    start_worker(slow, "last")
    other = slow.run(OTHER, name="other")

    [poisoned], [fine] = run.outcomes(), other.outcomes()

    assert (poisoned["success"], poisoned["starts"]) == (False, MOST_STARTS)
    assert any(f"was started {MOST_STARTS} times and each time its worker was lost" in e for e in poisoned["errors"])
    assert fine["success"]
    assert_every_row_once(slow, (OTHER,))


def test_a_partition_that_fails_leaves_the_worker_at_work(slow: Cluster) -> None:
    """The engine's folder is changed while the worker holds it: what it computed last is not stored."""
    worker = start_worker(slow)
    file = slow.engine_dir / "tokenizer.json"
    content = file.read_bytes()
    file.write_bytes(content + b" ")
    [failed] = slow.run(PART, name="failed").outcomes()
    file.write_bytes(content)

    [fine] = slow.run(OTHER, name="fine").outcomes()

    assert (failed["success"], fine["success"]) == (False, True)
    assert any("tokenizer.json" in error for error in failed["errors"])
    assert worker.popen.poll() is None
    assert_every_row_once(slow, (OTHER,))


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_broker_that_goes_and_comes_back_loses_nothing(slow: Cluster, end: str) -> None:
    """Gone while a message waits and gone in mid-partition; neither the run nor the worker is started again."""
    run = slow.run(PART)
    wait_until(lambda: slow.state().waiting == 1)
    getattr(slow.broker, end)()
    slow.broker.start()
    assert slow.state().waiting == 1
    worker = start_worker(slow)
    wait_for_the_middle(slow)
    getattr(slow.broker, end)()
    time.sleep(3)
    slow.broker.start()

    [outcome] = run.outcomes()

    assert outcome["success"]
    wait_until(lambda: slow.state() == QueueState(0, 1))
    assert_every_row_once(slow)
    assert slow.run(OTHER, name="next").outcomes()[0]["success"]
    assert worker.stop() == 0


@pytest.mark.parametrize("broker", [("heartbeat = 4", "")], indirect=True, ids=["4 s"])
def test_a_step_longer_than_many_heartbeats_is_started_once(slow: Cluster) -> None:
    start_worker(slow)
    [outcome] = slow.run(f"{PART}...{OTHER}").outcomes()
    assert (outcome["success"], outcome["starts"]) == (True, 1)
    assert_every_row_once(slow, (PART, OTHER))


@pytest.mark.parametrize(
    "broker", [("consumer_timeout = 3000", "-rabbit channel_tick_interval 1000")], indirect=True, ids=["3 s"]
)
def test_a_step_that_the_broker_takes_for_lost_is_stored_once_all_the_same(slow: Cluster) -> None:
    """Where RabbitMQ's consumer_timeout was left shorter than a step: the broker closes the worker's channel.

    The worker ends, once its step has; the message that comes back is void.
    """
    worker = start_worker(slow)
    [outcome] = slow.run(PART).outcomes()
    assert outcome["success"]
    assert_every_row_once(slow)
    assert worker.popen.wait(timeout=60) == 1
    assert "delivery acknowledgement on channel 1 timed out" in worker.said()
    start_worker(slow, "next").wait_for("its run is SUCCESS")
    assert_every_row_once(slow)


def send_again(cluster: Cluster, run_id: str) -> None:
    """Puts the run's step on the queue as if the broker delivered it once more."""
    job = ReconstructableRepository.for_module(
        "fabric_assets.definitions", "defs", working_directory=str(ROOT)
    ).get_reconstructable_job("extract")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FABRIC_HOME", str(cluster.home))
        with open_instance() as instance:
            order = order_step(
                instance, run_id, "hidden_states", job=job, known_state=None, retry_mode=RetryMode.DEFERRED
            )
    send_step(broker_app(cluster.broker.url), cluster.contract.queue, order.to_message())
