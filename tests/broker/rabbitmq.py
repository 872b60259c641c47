"""A real RabbitMQ on loopback, from the packages that `make broker` unpacks into `.rabbitmq`; for tests and benchmarks.

Everything listens on 127.0.0.1 only, in a folder of its own, with free ports; no privileges are needed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[2] / ".rabbitmq"
START_S = 60.0


@dataclass(frozen=True)
class Messages:
    """What a broker has counted since it started, of messages that a worker must acknowledge."""

    delivered: int
    redelivered: int
    acknowledged: int


class RabbitMQ:
    """One broker. `start` after `stop` or `kill` is a restart with what it had written to disk."""

    def __init__(
        self, folder: Path, *, root: Path = ROOT, settings: str = "", arguments: str = "", counting: bool = False
    ) -> None:
        """`settings` are further lines of rabbitmq.conf, `arguments` are Erlang's own; `messages` needs `counting`.

        Raises `FileNotFoundError` where nothing is unpacked.
        """
        if not (root / ".unpacked").exists():
            raise FileNotFoundError(f"there is no RabbitMQ in {root}; unpack it with `make broker`")
        [home] = (root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")
        self.version = home.name.rpartition("-")[2]
        self._server = home / "sbin" / "rabbitmq-server"
        self._erlang = root / "usr/lib/erlang"
        self._folder = folder
        self.port, distribution, epmd, self._metrics = free_ports(4)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "bin").mkdir(parents=True)
        listeners = f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
        if counting:
            listeners += f"prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {self._metrics}\n"
            (folder / "plugins").write_text("[rabbitmq_prometheus].\n")
        (folder / "rabbitmq.conf").write_text(f"{listeners}{settings}\n")
        self._environment = os.environ | {
            "HOME": str(folder),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_NODENAME": "fabric@localhost",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{127,0,0,1}} {arguments}",
        }
        self._write_erl()

    def start(self) -> RabbitMQ:
        """Returns once it takes connections."""
        [binaries] = self._erlang.glob("erts-*/bin")
        for command in ([str(binaries / "epmd")], [str(self._server)]):
            with open(self._folder / f"{Path(command[0]).name}.log", "wb") as log:
                process = subprocess.Popen(
                    command, env=self._environment, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
                )
            self._processes.append(process)
            time.sleep(0.1)
        deadline = time.monotonic() + START_S
        while "Server startup complete" not in self.said():
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(self.said()[-4000:])
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """As `systemctl stop` does it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a power cut does it."""
        self._end(signal.SIGKILL)

    def control(self, *words: str) -> None:
        """`rabbitmqctl` with these words."""
        command = [self._server.with_name("rabbitmqctl"), *words]
        subprocess.run(command, env=self._environment, cwd=self._folder, check=True, stdout=subprocess.DEVNULL)

    def said(self) -> str:
        """Its log since it started."""
        return (self._folder / "rabbitmq-server.log").read_text()

    def messages(self) -> Messages:
        """The broker's own counts."""
        with urlopen(f"http://127.0.0.1:{self._metrics}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()

        def count(name: str) -> int:
            return sum(int(line.split()[-1]) for line in lines if line.startswith(f"rabbitmq_global_messages_{name}"))

        return Messages(
            delivered=count("delivered_consume_manual_ack_total{"),
            redelivered=count("redelivered_total{"),
            acknowledged=count("acknowledged_total{"),
        )

    def _end(self, how: signal.Signals) -> None:
        while self._processes:
            process = self._processes.pop()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _write_erl(self) -> None:
        """Debian's `erl` knows only the folder that it is installed in."""
        [binaries] = self._erlang.glob("erts-*/bin")
        script = self._folder / "bin" / "erl"
        script.write_text(
            f"#!/bin/sh\nexport ROOTDIR={self._erlang} BINDIR={binaries} EMU=beam PROGNAME=erl\n"
            f'exec {binaries}/erlexec "$@"\n'
        )
        script.chmod(0o755)
        assert shutil.which("erl", path=str(script.parent))


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
