"""Sorts more rows than fit into memory.

Contract: rows go in as record batches of one schema and come out in ascending order of the key columns, with memory for
one run, or for one slice of every run. Strings and bytes are compared byte by byte. Rows with equal keys come out in no
particular order.
"""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

RUN_BYTES = 32 << 20
"""What is held and sorted in memory before it goes to disk."""

SLICE_BYTES = 256 << 10
"""What is read back of a run at a time."""


class ExternalSort:
    """Collects rows in sorted runs on disk and merges them. Leaving the context removes its files."""

    def __init__(self, schema: pa.Schema, by: Sequence[str], folder: Path) -> None:
        self._schema = schema
        self._by = tuple(by)
        self._folder = Path(tempfile.mkdtemp(prefix=".sort-", dir=folder))
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._runs: list[Path] = []

    def __enter__(self) -> ExternalSort:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes in rows of the schema, in any order."""
        if rows.num_rows == 0:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= RUN_BYTES:
            self._write_run()

    def merged(self) -> Iterator[pa.RecordBatch]:
        """All rows in order, in batches of no particular size. Nothing may be added any more."""
        if self._held:
            self._write_run()
        with ExitStack() as stack:
            runs = [stack.enter_context(_Run(path, self._by)) for path in self._runs]
            while runs := [run for run in runs if run.rows is not None]:
                # A run's next slice holds nothing smaller than what its slice ends with, so all that is not greater
                # than the smallest of these ends is at hand.
                bound = min(run.last_key() for run in runs)
                yield self._sorted([run.take_through(bound) for run in runs])

    def _write_run(self) -> None:
        path = self._folder / f"{len(self._runs)}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, self._schema) as writer:
            for piece in _slices(self._sorted(self._held)):
                writer.write_batch(piece)
        self._runs.append(path)
        self._held, self._held_bytes = [], 0

    def _sorted(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        rows = pa.Table.from_batches(batches, self._schema)
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in self._by])
        return rows.take(order).combine_chunks().to_batches()[0]


class _Run:
    """A sorted run as it is read back, slice by slice."""

    rows: pa.RecordBatch | None
    """What was read and not yet taken; None at the end."""

    def __init__(self, path: Path, by: tuple[str, ...]) -> None:
        self._source = pa.OSFile(str(path), "rb")
        self._slices = iter(pa.ipc.open_stream(self._source))
        self._by = by
        self.rows = next(self._slices, None)

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def last_key(self) -> tuple[Any, ...]:
        assert self.rows is not None
        return self._key(self.rows.num_rows - 1)

    def take_through(self, bound: tuple[Any, ...]) -> pa.RecordBatch:
        """The rows at hand whose key is not greater than `bound`."""
        assert self.rows is not None
        end = bisect_right(range(self.rows.num_rows), bound, key=self._key)
        taken, rest = self.rows.slice(0, end), self.rows.slice(end)
        self.rows = rest if rest.num_rows else next(self._slices, None)
        return taken

    def _key(self, row: int) -> tuple[Any, ...]:
        assert self.rows is not None
        return tuple(self.rows.column(name)[row].as_py() for name in self._by)


def _slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if rows.nbytes <= SLICE_BYTES or rows.num_rows == 1:
        yield rows
    else:
        half = rows.num_rows // 2
        yield from _slices(rows.slice(0, half))
        yield from _slices(rows.slice(half))
