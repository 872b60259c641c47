"""Ids that occur twice anywhere in a probe set, found out of core.

Contract: the result is a Parquet file with one row for each row of the set whose id an earlier row has, ordered by
`ordinal`: ordinal int64, first_source int32, first_row int64. An ordinal numbers the rows of the whole set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from resources.errors import ProbeFileError
from resources.external_sort import ExternalSort

_IDS = pa.schema(
    [("probe_id", pa.string()), ("ordinal", pa.int64()), ("source", pa.int32()), ("source_row", pa.int64())]
)
_DUPLICATES = pa.schema([("ordinal", pa.int64()), ("first_source", pa.int32()), ("first_row", pa.int64())])
_ROWS_AT_ONCE = 16_384


class Ids:
    """The ids of a probe set, sorted on disk; leaving the context removes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sort = ExternalSort(_IDS, ("probe_id", "ordinal"), folder)
        self._rows: list[tuple[str, int, int, int]] = []

    def __enter__(self) -> Ids:
        return self

    def __exit__(self, *exception: object) -> None:
        self._sort.__exit__(*exception)

    def add(self, probe_id: str, ordinal: int, source: int, source_row: int) -> None:
        """Notes the id of one row of the set."""
        self._rows.append((probe_id, ordinal, source, source_row))
        if len(self._rows) == _ROWS_AT_ONCE:
            self._flush()

    def write_duplicates(self, target: Path) -> bool:
        """Writes the duplicates to `target`; False, and no file, when there are none."""
        if self._rows:
            self._flush()
        with ExternalSort(_DUPLICATES, ("ordinal",), self._folder) as found:
            for batch in _later_rows(self._sort.merged()):
                found.add(batch)
            ordered = found.merged()
            first = next(ordered, None)
            if first is None:
                return False
            partial = target.with_name(f".{target.name}.{os.getpid()}")
            with pq.ParquetWriter(partial, _DUPLICATES) as writer:
                for batch in chain([first], ordered):
                    writer.write_batch(batch)
            os.replace(partial, target)
        return True

    def _flush(self) -> None:
        self._sort.add(_batch(self._rows, _IDS))
        self._rows.clear()


def duplicates_between(path: Path, first_ordinal: int, n_rows: int) -> dict[int, tuple[int, int]]:
    """ordinal -> (source, source row) of the first row with that id, for the duplicates among `n_rows` rows."""
    wanted = [("ordinal", ">=", first_ordinal), ("ordinal", "<", first_ordinal + n_rows)]
    try:
        table = pq.read_table(path, filters=wanted)
    except OSError as error:
        raise ProbeFileError(f"{path} cannot be read: {error}; register the probe set again") from error
    ordinals, sources, rows = (table.column(name).to_pylist() for name in ("ordinal", "first_source", "first_row"))
    return dict(zip(ordinals, zip(sources, rows, strict=True), strict=True))


def _later_rows(ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of ids in order, the rows whose id the row before has too, each with the place of the first one."""
    current, first = None, (0, 0)
    for batch in ids:
        later = []
        columns = (column.to_pylist() for column in batch.columns)
        for probe_id, ordinal, source, source_row in zip(*columns, strict=True):
            if probe_id == current:
                later.append((ordinal, *first))
            else:
                current, first = probe_id, (source, source_row)
        if later:
            yield _batch(later, _DUPLICATES)


def _batch(rows: Sequence[tuple], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
