"""A process is gone when that very process is; what cannot be seen from here is not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from resources.processes import (
    HOST_TAG,
    PROCESS_TAG,
    Process,
    is_gone,
    process_tags,
    started_ticks,
    tagged_process,
    this_process,
)

WHOLE = "pid:[4026531836]"


@pytest.fixture(scope="module")
def here() -> Process:
    process = this_process()
    if process is None:
        pytest.skip("the system does not tell one process from another")
    return process


def test_a_process_is_gone_once_it_has_ended(here: Process) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = replace(here, pid=child.pid, started=started_ticks(child.pid))
        assert not is_gone(process, here)
        child.communicate(b"\n")
    assert is_gone(process, here)


def test_one_that_only_has_its_number_is_another(here: Process) -> None:
    assert not is_gone(here, here)
    assert is_gone(replace(here, started=here.started - 1), here)


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"boot": "earlier"}, True),
        ({"boot": "earlier", "machine": "another"}, False),
        ({"namespace": "pid:[4026532001]"}, False),
        ({"namespace": "pid:[4026532001]", "boot": "earlier"}, False),
    ],
)
def test_only_the_restart_of_a_whole_machine_ends_what_cannot_be_seen(
    here: Process, change: dict[str, str], gone: bool
) -> None:
    whole = replace(here, namespace=WHOLE, machine="head 0123")
    not_seen = asdict(whole) | {"started": whole.started - 1}
    assert is_gone(Process(**(not_seen | change)), whole) is gone


@pytest.mark.parametrize(("namespace", "machine"), [("pid:[4026532001]", "head 0123"), (WHOLE, "")])
def test_containers_and_machines_without_a_name_are_not_told_apart_by_a_restart(
    here: Process, namespace: str, machine: str
) -> None:
    seen_from = replace(here, namespace=namespace, machine=machine)
    assert not is_gone(replace(seen_from, boot="earlier"), seen_from)


def test_a_run_is_of_the_process_that_its_own_tags_name(here: Process) -> None:
    tags = process_tags("run", here)
    assert tagged_process("run", tags) == here
    assert tagged_process("run-made-again", tags) is None


@pytest.mark.parametrize("value", ["", "run", "run {}", "run 1", 'run {"pid": 1}', "run nothing"])
def test_a_tag_that_is_not_understood_names_no_process(value: str) -> None:
    assert tagged_process("run", {PROCESS_TAG: value}) is None


def test_where_processes_are_not_told_apart_a_run_names_its_host_alone() -> None:
    assert process_tags("run", None).keys() == {HOST_TAG}
