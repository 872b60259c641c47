"""The real daemon, in a process group of its own that is gone at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]

LOOK_AT_BACKFILLS_S = 3
"""In place of the daemon's 30 s, which nothing sets from outside; the rest of it is as it is."""

COMMAND = (
    f"import dagster._daemon.controller as c; c.DEFAULT_DAEMON_INTERVAL_SECONDS = {LOOK_AT_BACKFILLS_S}; "
    "from dagster._daemon.cli import main; main()"
)


@contextmanager
def running_daemon(dagster_home: Path, environment: Mapping[str, str], log: IO[bytes]) -> Iterator[subprocess.Popen]:
    """`dagster-daemon run` over this project's workspace; its output goes to `log`."""
    daemon = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "run", "-w", "workspace.yaml"],
        cwd=ROOT,
        env=os.environ | {"DAGSTER_HOME": str(dagster_home)} | environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # A test runner that ignores SIGINT would leave a daemon that ignores SIGTERM (dagster.md, trap 5).
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield daemon
    finally:
        daemon.terminate()
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(timeout=20)
        # Its code server and runs are of its group.
        with suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
