"""A real RabbitMQ for the tests of the broker. Without it they are skipped, with how to get it; in CI they fail."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.postgres import ROOT as POSTGRES
from tests.broker.rabbitmq import ROOT, RabbitMQ

if importlib.util.find_spec("dagster_celery") is not None:
    from tests.broker.cluster import Cluster, copy_home, make_home
elif os.environ.get("CI"):
    raise RuntimeError("the extra `cluster` is not installed; CI needs it")

LINES = [f"line {number} of the set" for number in range(24)]


def require_broker() -> None:
    """Skips, or in CI fails, where RabbitMQ is not unpacked."""
    if not (ROOT / ".unpacked").exists():
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say("there is no RabbitMQ; unpack it with `make broker`")


def require_postgres() -> None:
    """Skips where Postgres is not unpacked."""
    if not (POSTGRES / ".unpacked").exists():
        pytest.skip("there is no Postgres; unpack it with `make postgres`")


@pytest.fixture(scope="package")
def made_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a home: a proved engine, its contract, six partitions of four probes."""
    require_broker()
    folder = tmp_path_factory.mktemp("made")
    make_home(folder, lines=LINES, shard_rows=4)
    return folder


@pytest.fixture(scope="package")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    require_broker()
    broker = RabbitMQ(tmp_path_factory.mktemp("rabbitmq") / "node").start()
    yield broker
    broker.stop()


@pytest.fixture
def cluster(made_home: Path, rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[Cluster]:
    """A home of its own; the queue is the same for every test, since the contract is."""
    cluster = Cluster(copy_home(made_home, tmp_path / "cluster"), rabbitmq)
    cluster.purge()
    yield cluster
    cluster.close()
