"""The write protocol between processes: kills and races leave whole partitions, one copy each."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from io_managers import tables
from io_managers.delta_table import janitor, write_partition
from io_managers.open_tables import open_table, stored_files, table_path
from io_managers.stored_rows import stored_records
from tests.io_managers.doomed_writer import CONTENT
from tests.io_managers.test_delta_table import FIVE, Source, row

SPEC = tables.WORK_ITEMS


def start(lake: Path, task: str, content: str = "five") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.io_managers.doomed_writer", str(lake), task, content],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize(
    ("task", "stored", "leftovers"),
    [
        ("die in the stream", [], 1),
        ("die before the files have their names", [], 1),
        ("die before the commit", [], 0),
        ("die after the commit", FIVE, 0),
    ],
)
def test_a_killed_writer_leaves_a_whole_partition_or_none_and_the_next_one_finishes(
    tmp_path: Path, task: str, stored: list[dict[str, object]], leftovers: int
) -> None:
    neighbour = [row(1, "b")]
    write_partition(tmp_path, SPEC, Source(neighbour, part="b").write())

    assert start(tmp_path, task).wait(timeout=60) == -signal.SIGKILL

    assert list(stored_records(tmp_path, SPEC, {"part": "a"})) == stored
    assert write_partition(tmp_path, SPEC, Source(FIVE).write()).skipped is bool(stored)
    assert list(stored_records(tmp_path, SPEC, {})) == [*FIVE, *neighbour]
    assert janitor(tmp_path, older_than_s=-1) == leftovers


@pytest.mark.parametrize(
    ("contents", "answer"),
    [(("five", "five"), "skipped"), (("five", "other"), "work_items/a was replaced with other content")],
    ids=["the same content", "other content"],
)
def test_of_two_processes_racing_for_one_partition_one_commits(
    tmp_path: Path, contents: tuple[str, str], answer: str
) -> None:
    racers = [start(tmp_path, "race", content) for content in contents]
    answers = [racer.communicate(timeout=60)[0] for racer in racers]

    winner = answers.index("stored\n")
    assert answers[1 - winner].startswith(answer)
    assert list(stored_records(tmp_path, SPEC, {})) == CONTENT[contents[winner]]
    path = table_path(tmp_path, SPEC)
    table = open_table(path)
    assert table is not None
    assert [path / f.path for f in stored_files(table, {})] == list(path.rglob("*.parquet"))
    assert [entry["operation"] for entry in table.history()].count("WRITE") == 1


def test_killed_at_any_moment_every_acknowledged_partition_is_there_whole(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    for delay in (0.0, 0.013, 0.027, 0.041):
        writer = start(tmp_path, "write on from", str(len(acknowledged)))
        assert writer.stdout is not None
        acknowledged += [int(writer.stdout.readline()) for _ in range(4)]
        time.sleep(delay)
        writer.kill()
        acknowledged += [int(line) for line in writer.stdout.read().split()]
        assert writer.wait(timeout=60) == -signal.SIGKILL

    parts = [r["part"] for r in stored_records(tmp_path, SPEC, {})]
    assert {parts.count(part) for part in parts} == {7}
    assert {f"p{n}" for n in acknowledged} <= set(parts)
    assert len(set(parts)) <= len(acknowledged) + 1
