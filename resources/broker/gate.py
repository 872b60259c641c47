"""The gate: a step of the worker's start that comes before its consumer, and the worker behind it.

Contract: `admit` runs after the thread pool and before the consumer connects. If it raises anything at all, the worker
never connects its consumer, so it can take no message, and ends with the exit code `REFUSED`. Celery's own start-up
signals are no gate: an exception in one is logged and swallowed (seen with Celery 5.7).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps
from celery.exceptions import Reject, WorkerShutdown
from celery.worker import state

from resources.broker.app import STEP_TASK, step_queue

REFUSED = 78
"""EX_CONFIG of sysexits.h: starting the same worker again gives the same answer."""

logger = logging.getLogger("fabric.worker")


class ForeignWork(Exception):
    """A message that this worker must give back and never take again: it is set up for another Dagster instance."""


def run_worker(
    app: Celery, queue: str, *, name: str, admit: Callable[[], None], perform: Callable[[dict[str, str]], None]
) -> int:
    """Runs one worker, one step at a time, until it is stopped; gives its exit code. The process is then done with.

    `perform` takes one step's order and returns when it is done with; an exception gives the message back.
    """
    install_gate(app, admit)
    app.conf.task_queues = [step_queue(queue)]

    @app.task(name=STEP_TASK)
    def step(order: dict[str, str]) -> None:
        try:
            perform(order)
        except ForeignWork as error:
            logger.error("fabric worker: %s", error)
            state.should_stop = REFUSED
            raise Reject(str(error), requeue=True) from error
        except Exception as error:
            logger.exception("fabric worker: the step is given back to the queue")
            state.should_stop = 1
            raise Reject(str(error), requeue=True) from error

    worker: Any = app.Worker(
        hostname=name,
        pool="threads",
        concurrency=1,
        queues=[queue],
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def install_gate(app: Celery, admit: Callable[[], None]) -> None:
    """Makes `admit` the last thing before the worker's consumer is started."""

    class Gate(bootsteps.StartStopStep):
        """Celery's consumer is the last step of all (`Consumer.last`), so this one comes before it."""

        requires = ("celery.worker.components:Pool",)

        def start(self, worker: Any) -> None:
            try:
                admit()
            except Exception as error:
                logger.error("fabric worker: not admitted: %s", error)
                raise WorkerShutdown(REFUSED) from error

    app.steps["worker"].add(Gate)
