"""The broker as both sides use it: one Celery application, and one durable queue for each contract.

Contract: a message is written to disk, and acknowledged only when its step has ended; a worker that dies gives it back.
A worker holds one message at a time. No result travels back: a step's outcome is in Dagster's event log, which outlives
the broker. A message of an hour must not be taken for lost: RabbitMQ's `consumer_timeout` (30 minutes by default) is
set in its own configuration (docs/deployment.md), since version 3.10 knows no setting of a queue for it; heartbeats are
sent by the worker's main thread while another one runs the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery import Celery
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

STEP_TASK = "fabric.step"
HEARTBEAT_S = 30
"""A connection that is silent for two of these is lost: how soon the work of a dead machine goes to another."""


@dataclass(frozen=True)
class QueueState:
    """What the broker says of a queue."""

    waiting: int
    """Messages that no worker holds."""
    consumers: int
    """Workers that are connected to it."""


def broker_app(url: str) -> Celery:
    """The Celery application for the RabbitMQ at `url` (amqp://user:password@host:port/vhost)."""
    app = Celery("fabric", broker=url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        broker_connection_max_retries=None,
        broker_connection_retry_on_startup=True,
        broker_heartbeat=HEARTBEAT_S,
        # An answer to every message that is sent: without it one that the broker never wrote is lost in silence.
        broker_transport_options={"confirm_publish": True},
        result_backend=None,
        task_acks_late=True,
        task_ignore_result=True,
        task_publish_retry_policy={"max_retries": 60, "interval_start": 0, "interval_step": 0.5, "interval_max": 2},
        task_reject_on_worker_lost=True,
        task_serializer="json",
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=1,
        worker_redirect_stdouts=False,
    )
    return app


def step_queue(name: str) -> Queue:
    """The durable queue of that name, on the broker's default exchange."""
    return Queue(name, exchange=Exchange(""), routing_key=name, durable=True)


def send_step(app: Celery, queue: str, order: dict[str, str]) -> str:
    """Puts one step on a queue, which is made if it is not there; gives the task's id once the broker has it."""
    return str(app.send_task(STEP_TASK, kwargs={"order": order}, queue=step_queue(queue)).id)


def queue_state(app: Celery, name: str) -> QueueState:
    """Asks the broker; a queue that does not exist has nothing and nobody. Raises `OperationalError` (kombu's)."""
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1)
        channel = connection.default_channel
        try:
            declared = channel.queue_declare(name, passive=True)
        except connection.channel_errors:
            return QueueState(0, 0)
        except connection.recoverable_connection_errors as error:
            raise OperationalError(str(error)) from error
        return QueueState(declared.message_count, declared.consumer_count)
