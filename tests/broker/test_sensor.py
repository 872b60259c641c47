"""One sensor is red while work waits that nobody may take; the other ends runs whose process was killed."""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import dagster as dg
import pytest
from dagster._core.events import EngineEventData

pytest.importorskip("dagster_celery", reason="needs the extra `cluster`")

from fabric_assets.defs import broker as sensors
from resources.broker.app import broker_app, send_step
from resources.broker.executor import HOST_TAG, RUN_TAG
from resources.errors import BrokerError
from tests.broker.cluster import Cluster
from tests.broker.rabbitmq import free_ports

FAILED = dg.DagsterRunStatus.FAILURE


@pytest.fixture
def loaded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module as a code location with this broker and contract has it."""
    monkeypatch.setenv("FABRIC_HOME", str(cluster.home))
    monkeypatch.setenv("FABRIC_BROKER", cluster.broker.url)
    yield importlib.reload(sensors)
    monkeypatch.undo()
    importlib.reload(sensors)


def test_a_queue_with_work_and_no_worker_fails_the_tick(cluster: Cluster, loaded: ModuleType) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance)
        said = loaded.queues_without_workers(context)
        assert said.skip_message == f"{cluster.contract.queue}: 0 workers, 0 steps wait"

        send_step(broker_app(cluster.broker.url), cluster.contract.queue, {})
        with pytest.raises(BrokerError, match=f"{cluster.contract.queue}: 0 workers, 1 steps wait; a queue has no"):
            loaded.queues_without_workers(context)


def test_a_run_that_waits_on_an_earlier_contract_fails_the_tick(cluster: Cluster, loaded: ModuleType) -> None:
    @dg.job
    def some_job() -> None: ...

    with dg.DagsterInstance.ephemeral() as instance:
        instance.create_run_for_job(some_job, status=dg.DagsterRunStatus.STARTED, tags={RUN_TAG: "fabric.earlier"})
        with pytest.raises(BrokerError, match=r"fabric.earlier: 0 workers, 0 steps wait"):
            loaded.queues_without_workers(dg.build_sensor_context(instance))


def test_a_broker_that_is_not_there_fails_the_tick(
    cluster: Cluster, loaded: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_BROKER", f"amqp://guest:guest@127.0.0.1:{free_ports(1)[0]}//")
    module = importlib.reload(loaded)
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(BrokerError, match="the broker cannot be reached"):
        module.queues_without_workers(dg.build_sensor_context(instance))


def test_a_run_of_this_machine_whose_process_was_killed_is_failed(loaded: ModuleType) -> None:
    @dg.job
    def some_job() -> None: ...

    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    with dg.DagsterInstance.ephemeral() as instance:
        here, elsewhere = (
            instance.create_run_for_job(some_job, status=dg.DagsterRunStatus.STARTED, tags={HOST_TAG: host})
            for host in (socket.gethostname(), "another-machine")
        )
        for run in (here, elsewhere):
            instance.report_engine_event("executes", run, EngineEventData.in_process(killed.pid))

        said = [loaded.runs_without_a_process(dg.build_sensor_context(instance)).skip_message for _ in range(2)]

        assert said == [f"failed: {here.run_id}", "every run has its process"]
        assert [run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=[FAILED]))] == [here.run_id]
