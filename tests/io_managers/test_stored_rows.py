"""Batches of a stored partition: columns, order, and memory that does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from io_managers import tables
from io_managers.delta_table import PartitionWrite, write_partition
from io_managers.errors import StoreError
from io_managers.stored_rows import partition_files, stored_batches, stored_records
from tests.io_managers.store import PART, flip_a_bit, put, token_rows, work_items
from tests.io_managers.test_delta_table import FIVE, Source, row

SPEC = tables.WORK_ITEMS


def test_memory_does_not_grow_with_the_partition(tmp_path: Path) -> None:
    rows, width = 20_000, 4096
    empty = pa.RecordBatch.from_pylist([], schema=tables.PROBE_SETS.schema)

    def batches() -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng(0)
        for _ in range(0, rows, 1000):
            # Text that does not compress, so that the file is large.
            texts = [rng.bytes(width // 2).hex() for _ in range(1000)]
            columns = [[PART] * 1000, texts, texts, [None] * 1000, ["f"] * 1000, range(1000), [None] * 1000]
            arrays = [pa.array(c, type=f.type) for c, f in zip(columns, empty.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=empty.schema)

    write_partition(tmp_path, tables.PROBE_SETS, PartitionWrite({"part": PART}, b"d" * 16, rows, batches, {}))
    before = pa.total_allocated_bytes()

    peak = 0
    for _ in stored_batches(tmp_path, tables.PROBE_SETS, {"part": PART}, rows=256):
        peak = max(peak, pa.total_allocated_bytes() - before)

    [file] = partition_files(tmp_path, tables.PROBE_SETS, PART)
    assert Path(file).stat().st_size > 64 << 20
    assert peak < 32 << 20


def test_partition_columns_and_chosen_columns_come_in_the_order_asked(tmp_path: Path) -> None:
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    write_partition(tmp_path, SPEC, Source([row(9, "b")], part="b").write())

    [first, second] = stored_batches(tmp_path, SPEC, {}, columns=["n_rows", "part"])

    assert first.schema.names == ["n_rows", "part"]
    assert first["part"].to_pylist() == ["a"] * 5
    assert second.to_pylist() == [{"n_rows": 9, "part": "b"}]


def test_a_partition_without_rows_or_table_has_no_batches(tmp_path: Path) -> None:
    assert list(stored_batches(tmp_path, SPEC, {"part": "a"})) == []
    assert partition_files(tmp_path, SPEC, "a") == []
    put(tmp_path, SPEC, [], part="a")
    assert list(stored_batches(tmp_path, SPEC, {"part": "a"})) == []


def test_a_file_with_other_rows_than_the_log_says_is_refused(tmp_path: Path) -> None:
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    write_partition(tmp_path, SPEC, Source([row(9, "b")], part="b").write())
    [a], [b] = partition_files(tmp_path, SPEC, "a"), partition_files(tmp_path, SPEC, "b")
    Path(a).write_bytes(Path(b).read_bytes())

    with pytest.raises(StoreError, match="holds 1 rows, the log says 5"):
        list(stored_records(tmp_path, SPEC, {"part": "a"}))


def test_one_flipped_bit_of_any_column_is_refused(tmp_path: Path) -> None:
    put(tmp_path, tables.TOKENISED_BATCHES, token_rows(work_items()), part=PART)
    [path] = map(Path, partition_files(tmp_path, tables.TOKENISED_BATCHES, PART))
    whole, group = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0)

    for column in map(group.column, range(group.num_columns)):
        start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
        flip_a_bit(path, start + column.total_compressed_size - 1)
        with pytest.raises(StoreError, match="cannot be read"):
            list(stored_records(tmp_path, tables.TOKENISED_BATCHES, {"part": PART}))
        path.write_bytes(whole)

    assert len(list(stored_records(tmp_path, tables.TOKENISED_BATCHES, {"part": PART}))) == 15


def test_damage_of_any_byte_is_no_other_error(tmp_path: Path) -> None:
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    [path] = map(Path, partition_files(tmp_path, SPEC, "a"))
    whole = path.read_bytes()
    refused = 0

    for at in range(0, len(whole), 3):
        flip_a_bit(path, at)
        try:
            list(stored_records(tmp_path, SPEC, {"part": "a"}))
        except StoreError:
            refused += 1
        path.write_bytes(whole)

    assert refused > len(whole) / 3 / 2
