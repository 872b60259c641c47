"""One sensor is red while work waits that nobody may take; the other ends runs whose process was killed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import dagster as dg
import pytest

pytest.importorskip("dagster_celery", reason="needs the extra `cluster`")

from fabric_assets.defs import broker as sensors
from resources.broker.app import broker_app, send_step
from resources.broker.executor import RUN_TAG
from resources.errors import BrokerError
from resources.processes import process_tags, started_ticks, this_process
from tests.broker.cluster import Cluster, wait_until
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

    here = this_process()
    assert here is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        killed = replace(here, pid=child.pid, started=started_ticks(child.pid))
        child.kill()
    cases = {
        "killed": killed,
        "alive": here,
        "with the number of an earlier one": replace(here, started=here.started - 1),
        "of another machine with the same name": replace(killed, boot="another", machine="another"),
        "in a container with the same name": replace(killed, namespace="another"),
        "that is not known": None,
    }
    with dg.DagsterInstance.ephemeral() as instance:
        runs = {}
        for name, process in cases.items():
            run = instance.create_run_for_job(some_job, status=dg.DagsterRunStatus.STARTED)
            instance.add_run_tags(run.run_id, process_tags(run.run_id, process))
            runs[run.run_id] = name
        # One that is about to be executed, made from the killed one with its tags, as Dagster's retries are.
        tags = process_tags(next(iter(runs)), killed)
        instance.create_run_for_job(some_job, status=dg.DagsterRunStatus.STARTED, tags=tags)

        said = [loaded.runs_without_a_process(dg.build_sensor_context(instance)).skip_message for _ in range(2)]

        failed = {run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=[FAILED]))}
        assert {runs.get(run_id) for run_id in failed} == {"killed", "with the number of an earlier one"}
        assert said[0].startswith("failed: ") and said[1] == "every run has its process"


def test_a_run_that_was_executed_is_failed_once_its_process_is_killed(cluster: Cluster, loaded: ModuleType) -> None:
    runs = cluster.run("set.00000")
    with dg.DagsterInstance.from_config(str(cluster.home / "dagster")) as instance:
        waiting = dg.RunsFilter(tags={RUN_TAG: cluster.contract.queue})
        wait_until(lambda: bool(instance.get_runs(waiting)))
        alive = loaded.runs_without_a_process(dg.build_sensor_context(instance)).skip_message
        runs.kill()
        [run] = instance.get_runs(waiting)

        said = loaded.runs_without_a_process(dg.build_sensor_context(instance)).skip_message

        assert (alive, said) == ("every run has its process", f"failed: {run.run_id}")
        [ended] = instance.get_runs(waiting)
        assert ended.status == FAILED
