"""docs/deployment.md, done step by step: a head and two machines with a worker each, Postgres, RabbitMQ, a bucket."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import dagster as dg

from fabric_assets.upkeep import backfills
from resources.broker.app import QueueState, broker_app, queue_state
from resources.broker.contract import Contract, read_contract
from tests.broker.cluster import wait_until
from tests.broker.machines import Machine, Unit
from tests.broker.page import block
from tests.broker.postgres import Postgres
from tests.broker.rabbitmq import RabbitMQ, free_ports
from tests.object_store import object_store
from tests.tiny import tiny_gguf

LAKE = "s3://bucket/lake"
PATIENCE_S = 300.0


@dataclass
class Deployment:
    """The head, the machines with a GPU, and their workers. While it stands, this process has the head's settings."""

    head: Machine
    gpus: list[Machine]
    broker: RabbitMQ
    postgres: Postgres
    web_port: int
    workers: dict[int, Unit] = field(default_factory=dict)
    """By the number of their machine, each the last one that was started there."""

    def instance(self) -> dg.DagsterInstance:
        """The head's view of Dagster, on Postgres."""
        return dg.DagsterInstance.from_config(str(self.head.home / "dagster"))

    def queue(self) -> QueueState:
        """What RabbitMQ says of the contract's queue."""
        return queue_state(broker_app(self.head.environment["FABRIC_BROKER"]), self.contract.queue)

    @property
    def contract(self) -> Contract:
        return read_contract(self.head.home / "contract.json")

    def build(self, **sizes: int) -> Path:
        """Builds and proves an engine on the first GPU's machine, writes its contract, and copies both as they must be;
        the engine's directory."""
        first, second = self.gpus
        few = first.home / "few.txt"
        few.write_text("one\ntwo\nthree\n")
        before = set((first.home / "engines").iterdir())
        options = [word for name, size in sizes.items() for word in (f"--{name.replace('_', '-')}", str(size))]
        first.command("fabric", "extract", str(few), *options, FABRIC_BROKER="")
        first.command("fabric", "contract")
        [engine] = set((first.home / "engines").iterdir()) - before
        shutil.copytree(engine, self.head.home / "engines" / engine.name)
        for machine in (self.head, second):
            shutil.copy(first.home / "contract.json", machine.home)
        return engine

    def start_worker(self, number: int, engine: Path | None = None) -> Unit:
        """Starts a machine's unit, with that engine from now on if one is given; waits until it serves or has ended."""
        current = self.gpus[number].home / "current-engine"
        if engine is not None:
            shutil.rmtree(current, ignore_errors=True)
            shutil.copytree(engine, current)
        worker = self.workers[number] = self.gpus[number].start("fabric-worker@.service", instance=str(number))
        wait_until(lambda: "serves" in worker.said() or worker.popen.poll() is not None)
        return worker

    def start_head(self) -> list[Unit]:
        """Starts the head's units."""
        return [self.head.start(f"fabric-{name}.service") for name in ("code", "daemon", "web")]

    def register(self, name: str, *, rows: int, shards: int) -> set[str]:
        """Adds partitions as the page says; the ids of their probes."""
        file = self.head.folder / f"{name}.txt"
        file.write_text("".join(f"row {number} of {name}\n" for number in range(rows)))
        command = _line("fabric register").replace("PROBES", str(file))
        self.head.command(*shlex.split(command), "--shard-rows", str(rows // shards))
        return {f"{name}.txt:{row}" for row in range(rows)}

    def start_missing(self) -> None:
        """Starts what is missing as the page says, once no other backfill is at work."""
        with self.instance() as instance:
            wait_until(lambda: not backfills.to_do(instance).reason.endswith("at work"), PATIENCE_S)
        self.head.command(*shlex.split(self.head.placed(_line("dagster job launch"))))

    def wait_for_steps(self, count: int = 1) -> list[int]:
        """Until so many workers execute a step; the numbers of those."""
        wait_until(lambda: len(self.busy()) >= count, PATIENCE_S)
        return self.busy()

    def busy(self) -> list[int]:
        """The workers that have begun a step and not ended it."""
        return [n for n, worker in self.workers.items() if worker.said().count("hidden_states of run") % 2]


def _line(start: str) -> str:
    """The page's line that starts so."""
    [line] = [line for line in block(start).splitlines() if line.startswith(start)]
    return line


@contextmanager
def deployment(folder: Path) -> Iterator[Deployment]:
    """Everything of the page but the building of an engine; workers are started by `start_workers`."""
    with ExitStack() as stack:
        store = stack.enter_context(object_store("bucket"))
        postgres = Postgres()
        stack.callback(postgres.stop)
        postgres.start()
        broker = RabbitMQ(folder / "rabbitmq", settings=block("consumer_timeout"))
        stack.callback(broker.stop)
        broker.start()
        code, web = free_ports(2)
        replaced = {
            "head:5672": f"127.0.0.1:{broker.port}",
            "@head/dagster": f"@127.0.0.1:{postgres.port}/dagster",
            "https://store:9000": store["AWS_ENDPOINT_URL"],
            "4266": str(code),
            "3000": str(web),
        }
        machines = [Machine(folder / name, replaced) for name in ("head", "gpu0", "gpu1")]
        head, *gpus = machines
        for machine in machines:
            stack.callback(machine.close)
            machine.environment["AWS_ALLOW_HTTP"] = "true"
            tiny_gguf(machine.home / "model.gguf")
        # A run for each partition, so that there are several at a time.
        head.environment["FABRIC_PARTITIONS_A_RUN"] = "1"
        postgres.execute(*filter(str.strip, block("CREATE ROLE").split(";")))
        for line in block("rabbitmqctl add_vhost").splitlines():
            broker.control(*shlex.split(line)[1:])
        # At once, so that all of them make Dagster's tables in the same empty database.
        with ThreadPoolExecutor() as pool:
            settings, *_ = pool.map(Machine.use_postgres, machines)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda machine: machine.command("fabric", "init"), machines))
        text = settings.read_text()
        for limit in ("max_concurrent_runs: 4", "        limit: 1"):
            assert limit in text
            text = text.replace(limit, limit.partition(":")[0] + ": 4")
        settings.write_text(text)
        stack.enter_context(patch.dict("os.environ", head.environment))
        yield Deployment(head, gpus, broker, postgres, web)
