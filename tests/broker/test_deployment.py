"""What docs/deployment.md promises, on Postgres and an object store: every row once, whatever is killed or restarted.

One deployment for all tests, in the order in which they stand; each has probes of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("dagster_celery", reason="needs the extra `cluster`")
pytest.importorskip("dagster_postgres", reason="needs the extra `cluster`")
pytest.importorskip("moto", reason="needs the extra `object-store-tests`")

import dagster as dg
import polars as pl
from dagster_graphql import DagsterGraphQLClient, ReloadRepositoryLocationStatus

from io_managers.reading import read_hidden_states
from resources.broker.app import QueueState
from resources.broker.gate import REFUSED
from tests.broker.cluster import wait_until
from tests.broker.conftest import require_broker, require_postgres
from tests.broker.deployment import LAKE, PATIENCE_S, Deployment, deployment
from tests.broker.machines import Unit, settings_of

pytestmark = pytest.mark.soak

ROWS, SHARDS, WORKERS = 60_000, 4, 2
SIZES = {"max_tokens": 24, "max_batch_tokens": 64}
SUCCESS, FAILURE = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE


@pytest.fixture(scope="module")
def deployed(
    tmp_path_factory: pytest.TempPathFactory, record_testsuite_property: Callable[[str, object], None]
) -> Iterator[Deployment]:
    require_broker()
    require_postgres()
    with deployment(tmp_path_factory.mktemp("deployed")) as made:
        record_testsuite_property("rabbitmq", made.broker.version)
        record_testsuite_property("postgres", made.postgres.version)
        engine = made.build(**SIZES, max_batch_size=12)
        for number in range(WORKERS):
            made.start_worker(number, engine)
        made.head.command("dagster", "instance", "concurrency", "set", "gpu", str(WORKERS))
        yield made


@pytest.fixture(scope="module")
def head(deployed: Deployment) -> list[Unit]:
    """The units of the head; a test that starts them again puts the new ones here."""
    return deployed.start_head()


def start_work(deployed: Deployment, name: str) -> set[str]:
    """Registers a set and starts its partitions; the ids of its probes."""
    probe_ids = deployed.register(name, rows=ROWS, shards=SHARDS)
    deployed.start_missing()
    return probe_ids


def stored(name: str) -> pl.DataFrame:
    """The ids that are stored of a set."""
    ids, _ = read_hidden_states(lake=LAKE)
    return ids.filter(ids["part"].str.starts_with(f"{name}."))


def assert_every_row_once(name: str, probe_ids: set[str]) -> None:
    found = stored(name)["probe_id"]
    assert len(found) == len(probe_ids)
    assert set(found) == probe_ids


def wait_for_runs(deployed: Deployment, name: str, *, count: int = SHARDS) -> list[dg.DagsterRunStatus]:
    """How so many runs of that set's partitions ended, in the order in which they were made."""
    runs: list[dg.DagsterRun] = []
    deadline = time.monotonic() + PATIENCE_S
    with deployed.instance() as instance:
        while len(runs) < count or not all(run.is_finished for run in runs):
            assert time.monotonic() < deadline, runs
            assert len(instance.event_log_storage.get_concurrency_info("gpu").claimed_slots) <= WORKERS
            time.sleep(0.5)
            runs = [run for run in instance.get_runs() if f"{name}.0" in str(run.tags)]
        return [run.status for run in reversed(runs)]


def test_a_worker_is_killed_under_a_backfill(deployed: Deployment, head: list[Unit]) -> None:
    probe_ids = start_work(deployed, "first")
    killed, _ = deployed.wait_for_steps(WORKERS)
    deployed.workers[killed].kill()
    deployed.start_worker(killed)

    assert wait_for_runs(deployed, "first") == [SUCCESS] * SHARDS
    assert_every_row_once("first", probe_ids)


def test_a_worker_is_stopped_under_a_backfill(deployed: Deployment, head: list[Unit]) -> None:
    """It ends its step, takes no other, and leaves as its unit expects."""
    probe_ids = start_work(deployed, "second")
    stopped, *_ = deployed.wait_for_steps()

    assert deployed.workers[stopped].stop() == 0

    assert stopped not in deployed.busy()
    deployed.start_worker(stopped)
    assert wait_for_runs(deployed, "second") == [SUCCESS] * SHARDS
    assert_every_row_once("second", probe_ids)
    assert deployed.queue() == QueueState(waiting=0, consumers=WORKERS)


def test_the_head_is_restarted_under_a_backfill(deployed: Deployment, head: list[Unit]) -> None:
    """`systemctl restart` of each unit: the runs go on."""
    probe_ids = start_work(deployed, "third")
    deployed.wait_for_steps()

    for unit in head:
        unit.stop()
    head[:] = deployed.start_head()

    assert wait_for_runs(deployed, "third") == [SUCCESS] * SHARDS
    assert_every_row_once("third", probe_ids)


def test_the_head_loses_its_power_under_a_backfill(deployed: Deployment, head: list[Unit]) -> None:
    """The sensor fails the runs that are gone, the pool is free again, and what is missing is made by other runs."""
    probe_ids = start_work(deployed, "fourth")
    deployed.wait_for_steps()

    for unit in head:
        unit.kill()
    head[:] = deployed.start_head()

    ended = wait_for_runs(deployed, "fourth")
    assert FAILURE in ended
    assert set(ended) <= {SUCCESS, FAILURE}
    with deployed.instance() as instance:
        wait_until(lambda: not instance.event_log_storage.get_concurrency_info("gpu").claimed_slots)
    deployed.start_missing()
    wait_until(lambda: len(stored("fourth")) == ROWS, PATIENCE_S)
    assert_every_row_once("fourth", probe_ids)


def test_an_engine_is_upgraded_beside_the_old_one(deployed: Deployment, head: list[Unit]) -> None:
    old = deployed.workers[0]
    taken = old.said().count("hidden_states of run")
    engine = deployed.build(**SIZES, max_batch_size=8)
    assert deployed.workers[1].stop() == 0
    deployed.start_worker(1, engine)
    web = DagsterGraphQLClient("127.0.0.1", port_number=deployed.web_port)
    assert web.reload_repository_location("fabric").status == ReloadRepositoryLocationStatus.SUCCESS

    probe_ids = start_work(deployed, "fifth")

    assert wait_for_runs(deployed, "fifth") == [SUCCESS] * SHARDS
    assert_every_row_once("fifth", probe_ids)
    assert set(stored("fifth")["engine_id"]) == {deployed.contract.engine_id}
    assert old.said().count("hidden_states of run") == taken


def test_a_worker_with_another_engine_than_the_contract_s_is_not_started_again(deployed: Deployment) -> None:
    """The first machine has the new contract, since the new engine was built there, and the old engine."""
    assert deployed.workers[0].stop() == 0
    refused = deployed.start_worker(0)

    assert refused.popen.wait(timeout=60) == REFUSED
    assert str(REFUSED) in settings_of(refused.text)["RestartPreventExitStatus"].split()
