"""The units of docs/deployment.md are what systemd takes them for: it finds nothing to say of any line.

That their commands run, stop and end as the units expect is in `test_deployment`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.broker.machines import Machine, units

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of Debian's systemd"),
]


@pytest.fixture
def written(tmp_path: Path) -> dict[str, str]:
    """Each unit by the name of its file, with paths that are there; a template as its first instance."""
    machine = Machine(tmp_path / "machine", {})
    return {name.replace("@.", "@0."): machine.placed(text) for name, text in units().items()}


def said_of(folder: Path, written: Mapping[str, str]) -> list[str]:
    """What `systemd-analyze verify` says, without the folder; nothing of units that are sound."""
    for name, text in written.items():
        (folder / name).write_text(text)
    files = [str(folder / name) for name in written]
    command = ["systemd-analyze", "verify", "--man=no", *files]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return run.stdout.replace(f"{folder}/", "").splitlines()


def test_systemd_has_nothing_to_say_of_the_units(written: dict[str, str], tmp_path: Path) -> None:
    assert set(written) == {f"fabric-{name}.service" for name in ("worker@0", "code", "web", "daemon")}
    assert said_of(tmp_path, written) == []


@pytest.mark.parametrize(
    ("line", "wrong", "said"),
    [
        ("RestartSec=10", "RestrtSec=10", "Unknown key 'RestrtSec'"),
        ("KillMode=mixed", "KillMode=mixd", "Failed to parse kill mode"),
        ("TimeoutStopSec=4h", "TimeoutStopSec=4hs", "Failed to parse time value"),
        ("bin/fabric worker", "bin/fabrik worker", "not executable"),
    ],
)
def test_a_slip_in_a_unit_would_be_seen(
    written: dict[str, str], tmp_path: Path, line: str, wrong: str, said: str
) -> None:
    name = "fabric-worker@0.service"
    assert line in written[name]
    assert said in " ".join(said_of(tmp_path, {name: written[name].replace(line, wrong)}))
