"""The rows of a stored partition as record batches, in the order in which they were stored.

Contract: a batch has the columns of the table's spec, partition columns included, though the files do not hold those.
Memory is about one row group. A page whose bytes do not have its checksum is a `StoreError`;
the few bytes of a page's header have none and are checked by the file's hash only, when its partition is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from io_managers.data_files import DataFile
from io_managers.errors import StoreError
from io_managers.open_tables import open_table, stored_files, table_path
from io_managers.places import place, source
from io_managers.tables import HIDDEN_STATES, TableSpec

ROWS_A_BATCH = 8192


def partition_files(
    lake: Path | str, spec: TableSpec, part: str | None = None, *, model_key: str | None = None
) -> list[str]:
    """Paths of the Parquet files of a partition, or of the whole table, in the order of their rows; [] if none."""
    scope = {} if part is None else {"part": part}
    root = table_path(lake, spec, model_key)
    return [str(root / file.path) for file in data_files(lake, spec, scope, model_key=model_key)]


def data_files(
    lake: Path | str, spec: TableSpec, scope: Mapping[str, str], *, model_key: str | None = None
) -> list[DataFile]:
    """The files of the partitions that `scope` names (all for an empty one), in the order of their rows."""
    table = open_table(table_path(lake, spec, model_key))
    return [] if table is None else stored_files(table, scope)


def stored_models(lake: Path | str) -> list[str]:
    """The model keys that have a table of vectors, sorted."""
    folder = place(lake) / HIDDEN_STATES.name
    return sorted(p.name for p in folder.iterdir() if (p / "_delta_log").is_dir()) if folder.is_dir() else []


def stored_batches(
    lake: Path | str,
    spec: TableSpec,
    scope: Mapping[str, str],
    *,
    model_key: str | None = None,
    columns: Sequence[str] | None = None,
    rows: int = ROWS_A_BATCH,
) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows` rows with `columns` (default: all of them) of the partitions that `scope` names."""
    files = data_files(lake, spec, scope, model_key=model_key)
    yield from file_batches(lake, spec, files, model_key=model_key, columns=columns, rows=rows)


def file_batches(
    lake: Path | str,
    spec: TableSpec,
    files: Sequence[DataFile],
    *,
    model_key: str | None = None,
    columns: Sequence[str] | None = None,
    rows: int = ROWS_A_BATCH,
) -> Iterator[pa.RecordBatch]:
    """`stored_batches` of files that `data_files` gave: all of one version, whatever is committed meanwhile."""
    schema = spec.schema if columns is None else pa.schema([spec.schema.field(name) for name in columns])
    root = table_path(lake, spec, model_key)
    for file in files:
        partition = dict(step.split("=", 1) for step in file.path.split("/")[:-1])
        held = [name for name in schema.names if name not in partition]
        read = 0
        try:
            # Pre-buffering, the default, ends with the whole file in memory.
            with pq.ParquetFile(source(root / file.path), pre_buffer=False, page_checksum_verification=True) as parquet:
                # A file that an older version of this project wrote lacks the columns that came since.
                absent = {f.name for f in schema if f.nullable} - {*parquet.schema_arrow.names}
                wanted = [name for name in held if name not in absent]
                for batch in parquet.iter_batches(batch_size=rows, columns=wanted):
                    read += batch.num_rows
                    arrays = [_column(f, batch, partition, absent) for f in schema]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise StoreError(f"{root / file.path} cannot be read ({error}); materialise its partition again") from error
        if read != file.rows:
            raise StoreError(f"{root / file.path} holds {read} rows, the log says {file.rows}; materialise it again")


def stored_records(
    lake: Path | str,
    spec: TableSpec,
    scope: Mapping[str, str],
    *,
    model_key: str | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of a small table as dictionaries."""
    for batch in stored_batches(lake, spec, scope, model_key=model_key, columns=columns):
        yield from batch.to_pylist()


def _column(field: pa.Field, batch: pa.RecordBatch, partition: Mapping[str, str], absent: set[str]) -> pa.Array:
    if field.name in partition:
        return pa.repeat(partition[field.name], batch.num_rows)
    return pa.nulls(batch.num_rows, field.type) if field.name in absent else batch[field.name]
