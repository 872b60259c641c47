"""A process, told so that another one can say later whether it is gone, whoever has its number by then.

Contract: no clock is read, since a clock may be set. A process that cannot be looked for from here (on another machine,
in another container) is never said to be gone.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

HOST_TAG = "fabric/host"
"""The tag of a run that says on which machine it is executed: the host's name."""
PROCESS_TAG = "fabric/process"
"""The tag of a run that says which process executes it: the run's id, then the process."""
_OF_A_WHOLE_MACHINE = "pid:[4026531836]"
"""The namespace of process ids that a machine starts with (PROC_PID_INIT_INO of Linux); a container has another."""


@dataclass(frozen=True)
class Process:
    """What names a process of Linux."""

    pid: int
    started: int
    """In ticks since the machine started, as proc(5) has it."""
    namespace: str
    """Of its process id."""
    boot: str
    """The kernel's boot_id: another one each time a machine starts."""
    machine: str
    """The host name and /etc/machine-id; empty where there is no such file, as in most containers."""


def this_process() -> Process | None:
    """None where the system does not tell, which is anywhere but on Linux."""
    pid = os.getpid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return Process(pid, started_ticks(pid), os.readlink("/proc/self/ns/pid"), boot, _machine())
    except OSError:
        return None


def is_gone(process: Process, seen_from: Process) -> bool:
    """Whether it has ended, as far as `seen_from`, this process, can tell."""
    if (process.boot, process.namespace) == (seen_from.boot, seen_from.namespace):
        return not _is_there(process)
    whole = process.namespace == seen_from.namespace == _OF_A_WHOLE_MACHINE
    started_again = process.boot != seen_from.boot and process.machine == seen_from.machine != ""
    return whole and started_again


def process_tags(run_id: str, process: Process | None) -> dict[str, str]:
    """The tags of a run that `process` executes. The name of the host alone, where the process is not known."""
    host = {HOST_TAG: socket.gethostname()}
    return host if process is None else host | {PROCESS_TAG: f"{run_id} {json.dumps(asdict(process))}"}


def tagged_process(run_id: str, tags: Mapping[str, str]) -> Process | None:
    """The process that executes the run with these tags; None if they do not say. A run that is made from another one
    has that one's tags until it is executed."""
    tagged_id, _, text = tags.get(PROCESS_TAG, "").partition(" ")
    try:
        return Process(**json.loads(text)) if tagged_id == run_id else None
    except (TypeError, ValueError):
        return None


def exists(pid: int) -> bool:
    """Whether a process has that number now, whosever it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def started_ticks(pid: int) -> int:
    """When a process was started, in ticks since the machine was. An OSError if none is there, or shown."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _is_there(process: Process) -> bool:
    if not exists(process.pid):
        return False
    try:
        return started_ticks(process.pid) == process.started
    except OSError:
        return True  # another user's, and hidden (hidepid of /proc)


def _machine() -> str:
    try:
        return f"{socket.gethostname()} {Path('/etc/machine-id').read_text().strip()}"
    except OSError:
        return ""
