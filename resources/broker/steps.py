"""One step of one run: how it travels, what Dagster's event log says of it, and its execution.

Contract: the event log decides. A step that has ended there, or whose run has, is not executed again, whoever asks: a
message that was delivered twice does nothing. One that keeps ending its worker is failed after `MOST_STARTS` starts.
Every execution ends in the log, so that whoever waits for it needs no other answer.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg

from resources.dagster_internals import (
    KnownExecutionState,
    ReconstructableJob,
    RetryMode,
    SerializableErrorInfo,
    StepFailureData,
    StepHandle,
    create_execution_plan,
    execute_plan_iterator,
    serializable_error_info_from_exc_info,
)

MOST_STARTS = 3
"""Starts of one attempt of a step, each of which ended with its worker, before the step is failed."""

_STARTED = {dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED}
_ENDED = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
_RETRIED = dg.DagsterEventType.STEP_UP_FOR_RETRY

logger = logging.getLogger("fabric.worker")


@dataclass(frozen=True)
class StepOrder:
    """One attempt of one step, as it travels. It names no database and holds no secret: a worker has its own."""

    run_id: str
    step_key: str
    attempt: str
    """How many attempts Dagster's retry policy had ended when this one was ordered."""
    job: str
    """The `ReconstructableJob`, serialised."""
    known_state: str
    """What the run knows of its other steps, serialised; "" where it knows nothing."""
    retry_mode: str

    def to_message(self) -> dict[str, str]:
        """What `StepOrder(**message)` reads back."""
        return asdict(self)


@dataclass(frozen=True)
class StepHistory:
    """What the event log says of a step."""

    retries: int
    """Attempts that ended with a retry."""
    starts: int
    """Starts since then."""
    ended: bool


def order_step(
    instance: dg.DagsterInstance,
    run_id: str,
    step_key: str,
    *,
    job: ReconstructableJob,
    known_state: KnownExecutionState | None,
    retry_mode: RetryMode,
) -> StepOrder:
    """The next attempt of a step."""
    return StepOrder(
        run_id=run_id,
        step_key=step_key,
        attempt=str(step_history(instance, run_id, step_key).retries),
        job=dg.serialize_value(job),
        known_state="" if known_state is None else dg.serialize_value(known_state),
        retry_mode=retry_mode.value,
    )


def step_history(instance: dg.DagsterInstance, run_id: str, step_key: str) -> StepHistory:
    """Reads the step's starts and ends in the order in which they were logged."""
    retries = starts = 0
    ended = False
    records = instance.get_records_for_run(run_id, of_type={*_STARTED, *_ENDED, _RETRIED}).records
    for event in (record.event_log_entry.get_dagster_event() for record in records):
        if event.step_key != step_key:
            continue
        if event.event_type == _RETRIED:
            retries, starts = retries + 1, 0
        elif event.event_type in _STARTED:
            starts += 1
        else:
            ended = True
    return StepHistory(retries, starts, ended)


def ended_attempt(history: StepHistory, order: StepOrder) -> bool:
    """Whether that attempt, or the step as a whole, is over."""
    return history.ended or history.retries > int(order.attempt)


def events_of_attempt(instance: dg.DagsterInstance, order: StepOrder) -> list[dg.DagsterEvent]:
    """The events of that attempt, from the end of the one before it to its own end."""
    events: list[dg.DagsterEvent] = []
    left = int(order.attempt)
    for entry in instance.all_logs(order.run_id):
        if entry.step_key != order.step_key or entry.dagster_event is None:
            continue
        event = entry.dagster_event
        if left:
            left -= event.event_type == _RETRIED
            continue
        events.append(event)
        if event.event_type == _RETRIED or event.event_type in _ENDED:
            break
    return events


def perform(order: StepOrder, instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """Executes the step unless it is over, and says why where it is not executed; its outcome is in the event log.

    An exception means that the log could not be read or written.
    """
    if run.is_finished or run.status == dg.DagsterRunStatus.CANCELING:
        return f"its run is {run.status.value}"
    history = step_history(instance, order.run_id, order.step_key)
    if ended_attempt(history, order):
        return "it has ended already"
    if history.starts >= MOST_STARTS:
        sentence = (
            f"{order.step_key} was started {history.starts} times and each time its worker was lost; it is not tried "
            "again; look at the workers' logs, at the machine's memory and at RabbitMQ's consumer_timeout, then "
            "materialise the partition alone"
        )
        report_failure(instance, run, order.step_key, SerializableErrorInfo(sentence, [], "PoisonedStep"))
        return sentence
    execute(order, instance, run)
    return None


def execute(order: StepOrder, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Executes the step in this process. An error outside of the step's own code fails the step too."""
    try:
        job = dg.deserialize_value(order.job, ReconstructableJob)
        plan = create_execution_plan(
            job,
            run.run_config,
            step_keys_to_execute=[order.step_key],
            known_state=dg.deserialize_value(order.known_state, KnownExecutionState) if order.known_state else None,
        )
        for _ in execute_plan_iterator(
            execution_plan=plan,
            job=job,
            dagster_run=run,
            instance=instance,
            retry_mode=RetryMode(order.retry_mode),
            run_config=run.run_config,
        ):
            pass
    except Exception:
        error = serializable_error_info_from_exc_info(sys.exc_info())
        if not ended_attempt(step_history(instance, order.run_id, order.step_key), order):
            report_failure(instance, run, order.step_key, error)


def report_failure(
    instance: dg.DagsterInstance, run: dg.DagsterRun, step_key: str, error: SerializableErrorInfo
) -> None:
    """Logs that the step failed, where no step could say so itself."""
    handle: Any = StepHandle.parse_from_key(step_key)
    event = dg.DagsterEvent(
        event_type_value=dg.DagsterEventType.STEP_FAILURE.value,
        job_name=run.job_name,
        step_handle=handle,
        event_specific_data=StepFailureData(error=error, user_failure_data=None),
        message=error.message,
    )
    instance.report_dagster_event(event, run.run_id, logging.ERROR)
