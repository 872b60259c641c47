"""A writer in a process of its own, which dies at a chosen moment or races another; run by test_delta_table_processes.

Arguments: the lake, what to do, which content. `write on from N` stores partition after partition until it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from deltalake import DeltaTable

from io_managers import data_files, delta_table, tables
from tests.io_managers.test_delta_table import FIVE, OTHER, Source, row

CONTENT = {"five": FIVE, "other": OTHER}


def die(*_: object, **__: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class DoomedSource(Source):
    """Dies when asked for its last batch, when a file of the write is open."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        data_files.ROW_GROUP_BYTES = 1
        *most, _ = super().batches()
        yield from most
        die()


def meet_rival(lake: Path) -> None:
    """Lets neither of two writers commit before both have written their files."""
    real = data_files.sync_folders

    def meet(folder: Path, root: Path) -> None:
        (lake / f"ready-{os.getpid()}").touch()
        while len(list(lake.glob("ready-*"))) < 2:
            time.sleep(0.001)
        real(folder, root)

    data_files.sync_folders = meet


def main(lake: Path, task: str, content: str) -> None:
    source = Source(CONTENT.get(content, FIVE))
    match task:
        case "die in the stream":
            source = DoomedSource(FIVE)
        case "die before the files have their names":
            os.rename = die
        case "die before the commit":
            DeltaTable.create_write_transaction = die
        case "die after the commit":
            delta_table._acknowledge = die
        case "race":
            meet_rival(lake)
        case "write on from":
            for number in range(int(content), 10_000):
                part = f"p{number}"
                write = Source([row(n, part) for n in range(7)], part=part).write()
                delta_table.write_partition(lake, tables.WORK_ITEMS, write)
                print(number, flush=True)
    try:
        print("skipped" if delta_table.write_partition(lake, tables.WORK_ITEMS, source.write()).skipped else "stored")
    except delta_table.StoreError as error:
        print(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
