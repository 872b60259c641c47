"""Ids that occur twice anywhere in a probe set, found out of core.

Contract: the result is a Parquet file with one row for each row of the set whose id an earlier row has, ordered by
`ordinal`: ordinal int64, first_source int32, first_row int64. An ordinal numbers the rows of the whole set.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

_SPOOL = pa.schema(
    [("ordinal", pa.int64()), ("source", pa.int32()), ("source_row", pa.int64()), ("probe_id", pa.string())]
)
_SPOOL_ROWS = 65_536
_MEMORY_LIMIT = "256MB"

_COPY_LATER_ROWS = """
    COPY (
        WITH repeated AS (
            SELECT probe_id, min(ordinal) AS first_ordinal,
                   arg_min(source, ordinal) AS first_source, arg_min(source_row, ordinal) AS first_row
            FROM read_parquet($ids) GROUP BY probe_id HAVING count(*) > 1
        )
        SELECT ordinal, first_source, first_row
        FROM read_parquet($ids) JOIN repeated USING (probe_id)
        WHERE ordinal > first_ordinal ORDER BY ordinal
    ) TO $found (FORMAT parquet)
"""


class IdSpool:
    """The ids of a probe set on disk, in a folder of its own that leaving the context removes."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=".ids-", dir=folder))
        self._ids = self._folder / "ids.parquet"
        self._writer = pq.ParquetWriter(self._ids, _SPOOL)
        self._rows: list[tuple[int, int, int, str]] = []

    def __enter__(self) -> IdSpool:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, ordinal: int, source: int, source_row: int, probe_id: str) -> None:
        """Notes the id of one row of the set."""
        self._rows.append((ordinal, source, source_row, probe_id))
        if len(self._rows) == _SPOOL_ROWS:
            self._flush()

    def write_duplicates(self, target: Path) -> bool:
        """Writes the duplicates to `target`; False, and no file, when there are none. Ends the spool."""
        if self._rows:
            self._flush()
        self._writer.close()
        found = self._folder / "duplicates.parquet"
        with duckdb.connect() as database:
            database.execute(f"SET memory_limit = '{_MEMORY_LIMIT}'")
            database.execute("SET temp_directory = $1", [str(self._folder / "spill")])
            database.execute(_COPY_LATER_ROWS, {"ids": str(self._ids), "found": str(found)})
        rows = pq.read_metadata(found).num_rows
        if rows:
            found.replace(target)
        return rows > 0

    def _flush(self) -> None:
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SPOOL, strict=True)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SPOOL))
        self._rows.clear()


def duplicates_between(path: Path, first_ordinal: int, n_rows: int) -> dict[int, tuple[int, int]]:
    """ordinal -> (source, source row) of the first row with that id, for the duplicates among `n_rows` rows."""
    wanted = [("ordinal", ">=", first_ordinal), ("ordinal", "<", first_ordinal + n_rows)]
    table = pq.read_table(path, filters=wanted)
    ordinals, sources, rows = (table.column(name).to_pylist() for name in ("ordinal", "first_source", "first_row"))
    return dict(zip(ordinals, zip(sources, rows, strict=True), strict=True))
