"""Machines that are set up as docs/deployment.md says: its files and commands as they stand there.

Only what one machine cannot have twice is replaced: folders, hosts and ports, passwords.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.broker.page import block

ROOT = Path(__file__).parents[2]
STORAGE = "storage:"


@dataclass
class Unit:
    """A unit of systemd that was started."""

    popen: subprocess.Popen[str]
    log: Path
    text: str

    def said(self) -> str:
        return self.log.read_text()

    def stop(self, patience_s: float = 120.0) -> int:
        """What `systemctl stop` does, by KillMode; the exit code of the main process."""
        mode = settings_of(self.text).get("KillMode", "control-group")
        if mode == "control-group":
            os.killpg(self.popen.pid, signal.SIGTERM)
        else:
            self.popen.terminate()
        code = self.popen.wait(timeout=patience_s)
        if mode != "process":
            self.kill()
        return code

    def kill(self) -> None:
        """Everything of its control group at once, as `kill -9` and a power cut do it."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


@dataclass
class Machine:
    """One machine below `folder`. `replaced` maps words of the page to what stands for them here."""

    folder: Path
    replaced: Mapping[str, str]
    started: list[Unit] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("etc", "var"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "etc" / "workspace.yaml").write_text(self.placed(block("load_from:")))

    @property
    def home(self) -> Path:
        return self.folder / "var"

    def placed(self, text: str) -> str:
        """A text of the page, with this machine's folders."""
        folders = {
            "/opt/fabric/.venv": sys.prefix,
            "/opt/fabric": str(ROOT),
            "/var/lib/fabric": str(self.folder / "var"),
            "/etc/fabric": str(self.folder / "etc"),
        }
        for word, stands_for in (folders | dict(self.replaced)).items():
            text = text.replace(word, stands_for)
        return text

    @cached_property
    def environment(self) -> dict[str, str]:
        """The page's settings, as systemd reads them."""
        return settings_of(self.placed(block("FABRIC_HOME=")))

    def command(self, *words: str, **environment: str) -> str:
        """Runs an installed command to its end with the page's settings; what it said."""
        run = subprocess.run(
            [Path(sys.prefix) / "bin" / words[0], *words[1:]],
            cwd=ROOT,
            env=self._environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout
        return run.stdout

    def use_postgres(self) -> Path:
        """`fabric init`, then the page's addition to dagster.yaml; the file."""
        self.command("fabric", "init")
        settings = self.home / "dagster" / "dagster.yaml"
        settings.write_text(settings.read_text() + block(STORAGE))
        return settings

    def start(self, unit: str, *, instance: str = "", **environment: str) -> Unit:
        """Starts a unit's ExecStart; `instance` is what stands behind its @."""
        text = self.placed(units()[unit]).replace("%i", instance)
        log = self.folder / f"{len(self.started)}-{unit}.log"
        settings = settings_of(text)
        with open(log, "w") as out:
            popen = subprocess.Popen(
                shlex.split(settings["ExecStart"]),
                cwd=settings.get("WorkingDirectory", "/"),
                env=self._environment | environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                # A test runner that ignores SIGINT would leave one of Dagster's that ignores SIGTERM.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        self.started.append(Unit(popen, log, text))
        return self.started[-1]

    def close(self) -> None:
        """Ends what it started."""
        for unit in self.started:
            unit.kill()

    @property
    def _environment(self) -> dict[str, str]:
        """Little more than the page's settings, as a service has it; and this tree, where another one is installed."""
        bare = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        return bare | self.environment


def units() -> dict[str, str]:
    """The page's units by the names of their files; those of the head that it gives by their difference, whole."""
    head = block("Description=hidden-state-fabric code location")
    found = {"fabric-worker@.service": block("Description=hidden-state-fabric worker"), "fabric-code.service": head}
    for part in block("# fabric-web.service").split("# ")[1:]:
        name, *lines = part.splitlines()
        new = dict(line.split("=", 1) for line in lines)
        kept = [line.partition("=") for line in head.splitlines()]
        found[name] = "\n".join(key + equals + new.get(key, value) for key, equals, value in kept) + "\n"
    return found


def settings_of(text: str) -> dict[str, str]:
    """The settings of a unit, or of a file of settings: a # begins a comment only where it begins a line."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] not in "#;")
