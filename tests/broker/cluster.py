"""A home with a proved tiny engine, a contract and partitions; workers and runs in processes of their own around it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fabric_assets.cli import fabric as command_line
from fabric_assets.commands.serving import write_contract
from fabric_assets.definitions import defs
from fabric_assets.instance import open_instance
from io_managers.reading import read_engine
from resources.broker.app import QueueState, broker_app, queue_state, step_queue
from resources.broker.contract import Contract, read_contract
from tests.broker.rabbitmq import RabbitMQ
from tests.tiny import tiny_gguf

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
MODEL = {"max_input_len": 24, "max_num_tokens": 64, "max_batch_size": 12}


def make_home(folder: Path, *, lines: Sequence[str], shard_rows: int, model: dict[str, Any] | None = None) -> None:
    """Makes `folder/home` with an engine of a tiny checkpoint, its contract, and the shards of `lines`."""
    checkpoint = tiny_gguf(folder / "tiny.gguf")
    (folder / "set.txt").write_text("".join(f"{line}\n" for line in lines))
    settings = {"checkpoint": str(checkpoint), **MODEL, **(model or {})}
    (folder / "run.json").write_text(json.dumps({"resources": {"model": {"config": settings}}}))
    with patch.dict(os.environ, FABRIC_HOME=str(folder / "home")):
        register = ["register", str(folder / "set.txt"), "--name", "set", "--shard-rows", str(shard_rows)]
        command_line.main(register, standalone_mode=False)
    agree_on_engine(folder, settings)


def agree_on_engine(folder: Path, settings: Mapping[str, Any], **build: str) -> None:
    """Builds an engine with these settings of the model (and of the build), and writes its contract."""
    run_here(folder, "build_engine", settings, ops={"engine": {"config": build}})
    with patch.dict(os.environ, FABRIC_HOME=str(folder / "home")):
        write_contract(None)


def run_here(
    folder: Path,
    job: str,
    settings: Mapping[str, Any],
    part: str | None = None,
    *,
    ops: Mapping[str, Any] | None = None,
) -> None:
    """Runs a job in this process, without a broker."""
    config = {"resources": {"model": {"config": dict(settings)}}, "ops": dict(ops or {})}
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with patch.dict(os.environ, FABRIC_HOME=str(folder / "home")), open_instance() as instance:
        resolved = defs().resolve_job_def(job)
        assert resolved.execute_in_process(instance=instance, run_config=config | quiet, partition_key=part).success


@dataclass
class Cluster:
    """One home and one broker; what it starts, `close` ends."""

    folder: Path
    broker: RabbitMQ
    environment: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def lake(self) -> Path:
        return self.home / "lake"

    @property
    def contract(self) -> Contract:
        return read_contract(self.home / "contract.json")

    @property
    def engine_dir(self) -> Path:
        engine = read_engine(self.lake, engine_id=self.contract.engine_id)
        return self.home / "engines" / engine.directory

    def worker(
        self, engine_dir: Path | None = None, *options: str, name: str = "worker", **environment: str
    ) -> Process:
        """Starts `fabric worker`."""
        call = ["-c", "from fabric_assets.cli import main; main()", "worker", "--engine"]
        return self.start([*call, str(engine_dir or self.engine_dir), *options], name, environment)

    def run(self, *parts: str, wait_s: float = 60.0, name: str = "run", **environment: str) -> Process:
        """Starts runs of these partitions, one after another; `outcomes` waits for them."""
        config = json.loads((self.folder / "run.json").read_text())
        if environment.get("FABRIC_BROKER") != "":
            config["execution"] = {"config": {"wait_s": wait_s}}
        settings = self.folder / f"{name}-settings.json"
        settings.write_text(json.dumps(config))
        return self.start(["-m", "tests.broker.run_parts", str(settings), *parts], name, environment)

    def state(self) -> QueueState:
        """What the broker says of the contract's queue."""
        return queue_state(broker_app(self.broker.url), self.contract.queue)

    def lake_state(self) -> dict[str, int]:
        """The size of every file of the lake."""
        return {str(path): path.stat().st_size for path in self.lake.rglob("*") if path.is_file()}

    def close(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def purge(self) -> None:
        """Drops what waits on the contract's queue."""
        with broker_app(self.broker.url).connection_for_write() as connection:
            queue = step_queue(self.contract.queue)(connection.default_channel)
            queue.declare()
            queue.purge()

    def child_environment(self) -> dict[str, str]:
        return os.environ | {
            "FABRIC_HOME": str(self.home),
            "FABRIC_BROKER": self.broker.url,
            "FABRIC_THREADS": "1",
            **self.environment,
        }

    def start(self, command: list[str], name: str, environment: Mapping[str, str] | None = None) -> Process:
        """Starts python with these arguments; `name` is that of its log."""
        log = self.folder / f"{name}.log"
        with open(log, "w") as out:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=self.child_environment() | dict(environment or {}),
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return Process(process, log)


@dataclass(frozen=True)
class Process:
    """A worker or a runner."""

    popen: subprocess.Popen[str]
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        """Until it has said so."""
        wait_until(lambda: text in self.said() or self.popen.poll() is not None)
        assert text in self.said(), self.said()

    def outcomes(self, patience_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        """What became of the runs, once all have ended."""
        code = self.popen.wait(timeout=patience_s)
        assert code == 0, self.said()
        return [json.loads(line) for line in self.said().splitlines() if line.startswith('{"part"')]

    def kill(self) -> None:
        os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def stop(self) -> int:
        """As systemd does it; the exit code."""
        self.popen.terminate()
        return self.popen.wait(timeout=PATIENCE_S)


def wait_until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Fails where that does not come true in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


def copy_home(made: Path, folder: Path) -> Path:
    """A home of its own for a test."""
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder
