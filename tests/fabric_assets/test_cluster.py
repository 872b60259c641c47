"""What FABRIC_BROKER and the contract decide when a code location is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabric_assets import cluster
from fabric_assets.defs.engines import EngineChoice
from io_managers import layout
from io_managers.reading import read_engine
from resources.broker.contract import contract_for
from resources.errors import ConfigurationError
from tests.fabric_assets.conftest import Fabric

URL = "amqp://guest:guest@127.0.0.1:1//"


def test_without_a_broker_no_step_has_a_queue_and_any_engine_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FABRIC_BROKER", raising=False)
    assert (cluster.broker_url(), cluster.engine_tags(), cluster.engine_id()) == (None, {}, None)


@pytest.mark.parametrize("url", ["localhost", "redis://127.0.0.1"])
def test_a_broker_that_is_not_rabbitmq_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("FABRIC_BROKER", url)
    with pytest.raises(ConfigurationError, match="FABRIC_BROKER is no URL of RabbitMQ"):
        cluster.broker_url()


def test_with_a_broker_a_step_goes_to_the_contract_s_queue_and_asks_for_its_engine(
    fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dagster_celery", reason="needs the extra `cluster`")
    build = ("engine", "engine_validation_report")
    assert fabric.run(*build).success
    first = read_engine(layout.lake_path())
    assert fabric.run(*build, model={"max_batch_size": 8}).success
    newest = read_engine(layout.lake_path())
    monkeypatch.setenv("FABRIC_BROKER", URL)
    assert cluster.engine_tags() == {"dagster-celery/queue": "fabric.no-contract"}

    agreed = contract_for(first)
    (tmp_path / "contract.json").write_text(agreed.to_json())
    monkeypatch.setenv("FABRIC_CONTRACT", str(tmp_path / "contract.json"))

    assert cluster.engine_tags() == {"dagster-celery/queue": agreed.queue}
    assert EngineChoice().of(newest) == first
    assert EngineChoice(engine_id=newest.engine_id).of(first) == newest
