"""Sensors, where there is a broker: one fails, in red, while work waits that nobody may take; one ends dead runs."""

import socket

import dagster as dg

from fabric_assets import cluster
from fabric_assets.upkeep.dead_runs import fail_dead_runs
from resources.errors import BrokerError
from resources.processes import HOST_TAG

if (_url := cluster.broker_url()) is not None:
    from kombu.exceptions import OperationalError

    from resources.broker.app import broker_app, queue_state
    from resources.broker.executor import RUN_TAG

    _broker = broker_app(_url)

    @dg.sensor(minimum_interval_seconds=60, default_status=dg.DefaultSensorStatus.RUNNING)
    def queues_without_workers(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Looks at the contract's queue, and at those on which runs wait, also of a contract before this one."""
        agreed = cluster.contract()
        running = context.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        queues = {run.tags[RUN_TAG] for run in running if RUN_TAG in run.tags}
        current = set() if agreed is None else {agreed.queue}
        try:
            states = {queue: queue_state(_broker, queue) for queue in sorted(queues | current)}
        except OperationalError as error:
            raise BrokerError(
                f"the broker cannot be reached ({error}); start RabbitMQ, or correct FABRIC_BROKER"
            ) from error
        lines = [f"{queue}: {state.consumers} workers, {state.waiting} steps wait" for queue, state in states.items()]
        if any(not state.consumers and (state.waiting or queue in queues) for queue, state in states.items()):
            raise BrokerError(
                f"{'; '.join(lines)}; a queue has no attested worker; start one with `fabric worker`, or cancel the "
                "runs that wait for a contract which no worker meets any more"
            )
        return dg.SkipReason("; ".join(lines) or "no contract yet: write one with `fabric contract`")

    @dg.sensor(minimum_interval_seconds=60, default_status=dg.DefaultSensorStatus.RUNNING)
    def runs_without_a_process(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Fails runs of this machine whose process was killed, as a power cut does it, and frees what they held."""
        executed = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
        here = dg.RunsFilter(statuses=executed, tags={HOST_TAG: socket.gethostname()})
        dead = fail_dead_runs(context.instance, context.instance.get_runs(here))
        return dg.SkipReason(f"failed: {', '.join(dead)}" if dead else "every run has its process")
