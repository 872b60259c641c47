"""Whether work goes to many machines: FABRIC_BROKER, and the contract that workers must meet.

Contract: both are read when the code location is loaded, since a step's tags are fixed then; another contract takes
effect when it is loaded again. Without FABRIC_BROKER nothing of the extra `cluster` is imported.
"""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from pathlib import Path

from io_managers import layout
from resources.broker.contract import Contract, read_contract
from resources.errors import ConfigurationError


def broker_url() -> str | None:
    """FABRIC_BROKER (amqp://user:password@host:port/vhost), or None where runs stay in one process."""
    url = os.environ.get("FABRIC_BROKER")
    if not url:
        return None
    if not url.startswith(("amqp://", "amqps://")):
        raise ConfigurationError(
            "FABRIC_BROKER is no URL of RabbitMQ; expected amqp://user:password@host:port/vhost; correct it, or unset "
            "it to run in one process"
        )
    if importlib.util.find_spec("dagster_celery") is None:
        raise ConfigurationError(
            "FABRIC_BROKER is set, and the extra `cluster` is not installed; pip install -e '.[cluster]', or unset it"
        )
    return url


def contract() -> Contract | None:
    """The contract of this code location, or None where none was written yet. A process reads it once."""
    return _contract_at(layout.contract_path())


def engine_id() -> str | None:
    """The engine of the contract: with a broker only that one's workers take work. None where any may be used."""
    agreed = contract() if broker_url() else None
    return None if agreed is None else agreed.engine_id


def engine_tags() -> dict[str, str]:
    """The tags of a step that needs an engine: with a broker, the queue on which the contract's workers wait."""
    if broker_url() is None:
        return {}
    from resources.broker.executor import NO_CONTRACT, QUEUE_TAG

    agreed = contract()
    return {QUEUE_TAG: NO_CONTRACT if agreed is None else agreed.queue}


@lru_cache(maxsize=1)
def _contract_at(path: Path) -> Contract | None:
    return read_contract(path) if path.exists() else None
