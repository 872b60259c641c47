"""A real Postgres on loopback, from the package that `make postgres` unpacks into `.postgres`; for tests.

It refuses to run as root, so that root runs it as the user `nobody`, in a folder of that user's own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.broker.rabbitmq import free_ports

ROOT = Path(__file__).parents[2] / ".postgres"
START_S = 60.0
ADMINISTRATOR = "postgres"


class Postgres:
    """One server, over TCP and with passwords."""

    def __init__(self, *, root: Path = ROOT) -> None:
        """Raises `FileNotFoundError` where nothing is unpacked."""
        if not (root / ".unpacked").exists():
            raise FileNotFoundError(f"there is no Postgres in {root}; unpack it with `make postgres`")
        [binaries] = root.glob("usr/lib/postgresql/*/bin")
        self.version = binaries.parent.name
        [libraries] = root.glob("usr/lib/*/libpq.so.5")
        self._binaries, self._environment = binaries, os.environ | {"LD_LIBRARY_PATH": str(libraries.parent)}
        [self.port] = free_ports(1)
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._as: dict[str, Any] = {"env": self._environment, "cwd": self._folder}
        if os.geteuid() == 0:
            self._as |= {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self._folder, "nobody", "nogroup")
        self._server: subprocess.Popen[bytes] | None = None

    def url(self, database: str, user: str = ADMINISTRATOR, password: str = ADMINISTRATOR) -> str:
        """Of a database of this server."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> Postgres:
        """Returns once it takes connections."""
        data = self._folder / "data"
        secret = self._folder / "password"
        secret.write_text(ADMINISTRATOR)
        made = ["--no-sync", "--auth=scram-sha-256", f"--username={ADMINISTRATOR}", f"--pwfile={secret}"]
        subprocess.run(
            [self._binaries / "initdb", *made, "-D", data], check=True, stdout=subprocess.DEVNULL, **self._as
        )
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": ""}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        log = self._folder / "log"
        with open(log, "wb") as out:
            self._server = subprocess.Popen(
                [self._binaries / "postgres", "-D", data, *options],
                stdout=out,
                stderr=out,
                start_new_session=True,
                **self._as,
            )
        deadline = time.monotonic() + START_S
        while "ready to accept connections" not in log.read_text():
            if self._server.poll() is not None or time.monotonic() > deadline:
                said = log.read_text()
                self.stop()
                raise RuntimeError(said[-4000:])
            time.sleep(0.05)
        return self

    def execute(self, *statements: str) -> None:
        """As its administrator, each in a transaction of its own."""
        import psycopg2

        connection = psycopg2.connect(self.url("postgres"))
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.close()

    def stop(self) -> None:
        """Ends it, with its folder."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            self._server.wait(timeout=30)
        shutil.rmtree(self._folder, ignore_errors=True)
