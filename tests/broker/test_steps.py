"""A step that is ordered twice, that ends its worker, that is retried: the event log alone decides what is executed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterEvent, DagsterEventType
from dagster._core.definitions.reconstruct import ReconstructableRepository

from resources.broker.steps import (
    MOST_STARTS,
    StepOrder,
    ended_attempt,
    events_of_attempt,
    order_step,
    perform,
    step_history,
)
from resources.dagster_internals import KnownExecutionState, RetryMode, StepHandle
from tests.broker import small_job

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


@pytest.fixture
def run(instance: dg.DagsterInstance) -> dg.DagsterRun:
    return instance.create_run_for_job(small_job.small)


def order(
    instance: dg.DagsterInstance, run: dg.DagsterRun, step: str, *, module: str = "small_job", retries: int = 0
) -> StepOrder:
    job = ReconstructableRepository.for_module(f"tests.broker.{module}", "defs", working_directory=ROOT)
    made = order_step(
        instance,
        run.run_id,
        step,
        job=job.get_reconstructable_job("small"),
        known_state=KnownExecutionState(previous_retry_attempts={step: retries}) if retries else None,
        retry_mode=RetryMode.DEFERRED,
    )
    assert StepOrder(**made.to_message()) == made
    return made


def kinds(instance: dg.DagsterInstance, ordered: StepOrder) -> list[str]:
    return [e.event_type_value for e in events_of_attempt(instance, ordered) if e.event_type_value.startswith("STEP_")]


def lose_a_worker(instance: dg.DagsterInstance, run: dg.DagsterRun, step: str) -> None:
    """What a worker that was killed leaves in the log."""
    start = DagsterEvent(DagsterEventType.STEP_START.value, run.job_name, StepHandle.parse_from_key(step))
    instance.report_dagster_event(start, run.run_id)


@pytest.mark.parametrize(
    ("step", "events"),
    [("works", ["STEP_START", "STEP_OUTPUT", "STEP_SUCCESS"]), ("fails", ["STEP_START", "STEP_FAILURE"])],
)
def test_a_step_is_executed_once_however_often_it_is_delivered(instance, run, step, events) -> None:
    ordered = order(instance, run, step)
    assert not ended_attempt(step_history(instance, run.run_id, step), ordered)

    assert perform(ordered, instance, run) is None
    assert [perform(ordered, instance, run) for _ in range(2)] == ["it has ended already"] * 2

    assert kinds(instance, ordered) == events
    assert step_history(instance, run.run_id, step).starts == 1


@pytest.mark.parametrize(
    "end", [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.CANCELING]
)
def test_a_step_of_a_run_that_has_ended_is_not_executed(instance, end) -> None:
    run = instance.create_run_for_job(small_job.small, status=end)
    ordered = order(instance, run, "works")

    assert perform(ordered, instance, run) == f"its run is {end.value}"

    assert kinds(instance, ordered) == []


def test_a_step_whose_worker_was_lost_is_executed_again_until_it_has_ended_too_many(instance, run) -> None:
    for _ in range(MOST_STARTS - 1):
        lose_a_worker(instance, run, "works")
        lose_a_worker(instance, run, "fails")
    ordered, poisoned = order(instance, run, "works"), order(instance, run, "fails")
    assert perform(ordered, instance, run) is None
    assert kinds(instance, ordered)[-1] == "STEP_SUCCESS"

    lose_a_worker(instance, run, "fails")
    said = perform(poisoned, instance, run)

    assert said.startswith(f"fails was started {MOST_STARTS} times and each time its worker was lost")
    assert kinds(instance, poisoned) == ["STEP_START"] * MOST_STARTS + ["STEP_FAILURE"]
    assert events_of_attempt(instance, poisoned)[-1].step_failure_data.error.message == said
    assert perform(poisoned, instance, run) == "it has ended already"


def test_an_attempt_that_was_retried_is_void_and_the_next_one_counts_its_own_starts(instance, run) -> None:
    first = order(instance, run, "fails_at_first")
    for _ in range(MOST_STARTS - 1):
        lose_a_worker(instance, run, "fails_at_first")
    assert perform(first, instance, run) is None
    assert kinds(instance, first)[-1] == "STEP_UP_FOR_RETRY"
    assert perform(first, instance, run) == "it has ended already"

    second = order(instance, run, "fails_at_first", retries=1)
    assert (first.attempt, second.attempt) == ("0", "1")
    assert step_history(instance, run.run_id, "fails_at_first").starts == 0
    assert perform(second, instance, run) is None

    assert kinds(instance, second) == ["STEP_RESTARTED", "STEP_OUTPUT", "STEP_SUCCESS"]


def test_a_code_location_that_cannot_be_loaded_fails_the_step(instance, run) -> None:
    ordered = order(instance, run, "works", module="no_such_module")

    assert perform(ordered, instance, run) is None

    assert kinds(instance, ordered) == ["STEP_FAILURE"]
    assert "no_such_module" in events_of_attempt(instance, ordered)[-1].step_failure_data.error.to_string()


def test_an_order_names_no_database(instance, run) -> None:
    ordered = order(instance, run, "works")
    assert instance.root_directory not in str(ordered.to_message())
    assert replace(ordered, step_key="fails") != ordered
