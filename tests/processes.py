"""Dagster's own processes, each in a process group of its own that is gone at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]

LOOK_AT_BACKFILLS_S = 3
"""In place of the daemon's 30 s, which nothing sets from outside; the rest of it is as it is."""

DAEMON = (
    f"import dagster._daemon.controller as c; c.DEFAULT_DAEMON_INTERVAL_SECONDS = {LOOK_AT_BACKFILLS_S}; "
    "from dagster._daemon.cli import main; main()"
)


@contextmanager
def running_daemon(dagster_home: Path, environment: Mapping[str, str], log: IO[bytes]) -> Iterator[subprocess.Popen]:
    """`dagster-daemon run` over this project's workspace; its output goes to `log`."""
    with _running(["-c", DAEMON, "run", "-w", "workspace.yaml"], dagster_home, environment, log) as daemon:
        yield daemon


@contextmanager
def running_webserver(
    dagster_home: Path, port: int, environment: Mapping[str, str], log: IO[bytes]
) -> Iterator[subprocess.Popen]:
    """`dagster-webserver` over this project's workspace, on the loopback."""
    command = ["-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port), "-w", "workspace.yaml"]
    with _running(command, dagster_home, environment, log) as webserver:
        yield webserver


@contextmanager
def _running(
    arguments: Sequence[str], dagster_home: Path, environment: Mapping[str, str], log: IO[bytes]
) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"DAGSTER_HOME": str(dagster_home)} | environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # A test runner that ignores SIGINT would leave one that ignores SIGTERM (dagster.md, trap 5).
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        # Its code server and runs are of its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
