"""The Dagster executor for many machines: a step that needs an engine goes to its contract's queue.

Contract: dagster-celery's loop decides which step is next. One with the tag `dagster-celery/queue` becomes a message;
any other is executed in the run's own process, so that no worker but an attested one ever takes a message. A step is
done when Dagster's event log says so. While nobody serves its queue the run says so once, and after `wait_s` it fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import dagster as dg
from celery import Celery
from dagster_celery import core_execution_loop
from dagster_celery.executor import CeleryExecutor
from dagster_celery.tags import DAGSTER_CELERY_QUEUE_TAG
from kombu.exceptions import OperationalError

from resources.broker.app import broker_app, queue_state, send_step
from resources.broker.steps import StepOrder, ended_attempt, events_of_attempt, execute, order_step, step_history
from resources.dagster_internals import (
    ExecutionPlan,
    ExecutionStep,
    KnownExecutionState,
    PlanOrchestrationContext,
    RetryMode,
    get_retries_config,
)
from resources.errors import BrokerError, ConfigurationError
from resources.processes import process_tags, this_process

QUEUE_TAG = DAGSTER_CELERY_QUEUE_TAG
NO_CONTRACT = "fabric.no-contract"
"""The queue of a code location that found no contract when it was loaded; nothing is ever sent to it."""
RUN_TAG = "fabric/queue"
"""The tag of a run that has sent a step: the queue on which it waits."""
TICK_S = 0.1
POLL_S = 0.5
"""Seconds between two looks at the event log for a step that was sent."""
LOOK_S = 5.0
"""Seconds between two looks at a queue that a step waits for."""


def cluster_executor(url: str) -> dg.ExecutorDefinition:
    """The executor of a code location whose broker is at `url`."""

    @dg.executor(
        name="fabric_cluster",
        config_schema={
            "wait_s": dg.Field(
                float,
                default_value=900.0,
                description="Seconds that a step may wait while no attested worker serves its queue; then it fails.",
            ),
            "retries": get_retries_config(),
        },
        requirements=dg.multiple_process_executor_requirements(),
    )
    def fabric_cluster(init_context: dg.InitExecutorContext) -> ClusterExecutor:
        config: Any = init_context.executor_config
        retries = RetryMode.from_config(config["retries"]) or RetryMode.ENABLED
        return ClusterExecutor(url, wait_s=config["wait_s"], retries=retries)

    return fabric_cluster


class ClusterExecutor(CeleryExecutor):
    """dagster-celery's executor, whose steps are sent to attested workers or executed here."""

    def __init__(self, url: str, *, wait_s: float, retries: RetryMode) -> None:
        super().__init__(retries=retries, broker=url)
        self._app = broker_app(url)
        self._wait_s = wait_s

    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[Any]:
        # One second by default, after every step: most of the time of a small partition.
        core_execution_loop.TICK_SECONDS = TICK_S  # type: ignore[assignment]
        plan_context.instance.add_run_tags(plan_context.run_id, process_tags(plan_context.run_id, this_process()))
        return core_execution_loop.core_celery_execution_loop(
            plan_context, execution_plan, step_execution_fn=self._start
        )

    def _start(
        self,
        _app: Celery,
        plan_context: PlanOrchestrationContext,
        step: ExecutionStep,
        queue: str,
        _priority: int,
        known_state: KnownExecutionState | None,
    ) -> SentStep:
        order = order_step(
            plan_context.instance,
            plan_context.run_id,
            step.key,
            job=plan_context.reconstructable_job,
            known_state=known_state,
            retry_mode=self.retries.for_inner_plan(),
        )
        if QUEUE_TAG not in step.tags:
            execute(order, plan_context.instance, plan_context.dagster_run)
            return SentStep(order, plan_context, None)
        if queue == NO_CONTRACT:
            raise ConfigurationError(
                f"step {step.key} needs an engine, and this code location has no contract; write one with "
                "`fabric contract`, start workers with `fabric worker`, then reload the code location"
            )
        plan_context.instance.add_run_tags(plan_context.run_id, {RUN_TAG: queue})
        watch = QueueWatch(self._app, queue, wait_s=self._wait_s, log=plan_context.log)
        return SentStep(order, plan_context, watch, send_step(self._app, queue, order.to_message()))


class SentStep:
    """A step that was sent or executed; in dagster-celery's loop it stands where Celery's own result does."""

    def __init__(
        self,
        order: StepOrder,
        plan_context: PlanOrchestrationContext,
        watch: QueueWatch | None,
        task_id: str | None = None,
    ) -> None:
        self._order, self._instance = order, plan_context.instance
        self._watch, self._task_id = watch, task_id
        self._error: BrokerError | None = None
        self._polled = 0.0

    def ready(self) -> bool:
        """Whether the step is over, or given up."""
        if self._watch is not None and time.monotonic() - self._polled < POLL_S:
            return False
        self._polled = time.monotonic()
        history = step_history(self._instance, self._order.run_id, self._order.step_key)
        if self._watch is None or ended_attempt(history, self._order):
            return True
        try:
            self._watch.look(started=history.starts > 0)
        except BrokerError as error:
            self._error = error
            self.revoke()
        return self._error is not None

    def get(self) -> list[str]:
        """The step's events, serialised; raises the error with which it was given up."""
        if self._error is not None:
            raise self._error
        return [dg.serialize_value(event) for event in events_of_attempt(self._instance, self._order)]

    def revoke(self) -> None:
        """Tells the workers to drop the message; the run's end in the event log does so for any that do not hear it."""
        if self._watch is not None:
            self._watch.revoke(self._task_id)


class QueueWatch:
    """Looks at a queue while a step waits on it, and says when nobody serves it."""

    def __init__(self, app: Celery, queue: str, *, wait_s: float, log: Any) -> None:
        self._app, self._queue, self._wait_s, self._log = app, queue, wait_s, log
        self._served = self._looked = time.monotonic()
        self._said = False

    def look(self, *, started: bool) -> None:
        """Asks the broker at most every `LOOK_S`. Raises `BrokerError` once nobody served the queue for `wait_s`."""
        now = time.monotonic()
        if now - self._looked < min(LOOK_S, self._wait_s / 2):
            return
        self._looked = now
        problem = self._problem(started)
        if problem is None:
            self._served, self._said = now, False
        elif now - self._served >= self._wait_s:
            lasted = now - self._served
            raise BrokerError(f"{problem}; this lasted for {lasted:.0f} s; the limit, `wait_s`, is {self._wait_s:g} s")
        elif not self._said:
            self._said = True
            self._log.warning(f"{problem}; the run fails if this lasts for {self._wait_s:.0f} s")

    def revoke(self, task_id: str | None) -> None:
        """Best effort: a broker that cannot be reached has nobody to tell."""
        if task_id is None:
            return
        try:
            self._app.control.revoke(task_id)
        except OperationalError as error:
            self._log.warning(f"the step's message could not be revoked ({error}); its run's end makes it void")

    def _problem(self, started: bool) -> str | None:
        try:
            state = queue_state(self._app, self._queue)
        except OperationalError as error:
            return f"the broker cannot be reached ({error}); start RabbitMQ, or correct FABRIC_BROKER"
        if not state.consumers:
            return (
                f"no attested worker serves the queue {self._queue} ({state.waiting} steps wait); start one with "
                "`fabric worker --engine ENGINE_DIR` and this code location's contract"
            )
        if not started and not state.waiting:
            return f"the step is not on the queue {self._queue} and no worker has started it; see the workers' logs"
        return None
