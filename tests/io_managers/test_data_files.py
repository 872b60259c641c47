"""Files of a partition: order, sizes of row groups and files, and nothing left of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from io_managers import data_files
from io_managers.data_files import damage, write_files
from tests.io_managers.store import flip_a_bit

SCHEMA = pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("payload", pa.binary(), nullable=False)])


def batches(rows: int, *, width: int, step: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, step):
        numbers = range(start, min(start + step, rows))
        payload = pa.array([bytes([n % 256]) * width for n in numbers], pa.binary())
        yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.int32()), payload], schema=SCHEMA)


@pytest.mark.parametrize("step", [1, 7, 1000], ids=lambda step: f"batches of {step} rows")
def test_rows_keep_their_order_over_files_and_row_groups(tmp_path: Path, monkeypatch, step: int) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 2_000)
    monkeypatch.setattr(data_files, "FILE_BYTES", 10_000)

    files = write_files(tmp_path, "part=a", SCHEMA, batches(1000, width=50, step=step))

    tables = [pq.ParquetFile(tmp_path / f.path) for f in sorted(files, key=lambda f: f.path)]
    assert np.array_equal(np.concatenate([t.read()["n"].to_numpy() for t in tables]), np.arange(1000))
    assert [f.rows for f in files] == [t.metadata.num_rows for t in tables]
    assert [f.bytes for f in files] == [(tmp_path / f.path).stat().st_size for f in files]
    groups = [t.metadata.row_group(g).num_rows for t in tables for g in range(t.num_row_groups)]
    assert len(files) > 3
    assert max(groups) * 54 <= 2_000 + 54
    assert np.median(groups) * 54 > 1_000


@pytest.mark.parametrize(
    ("rows", "width", "step"),
    [(40_000, 1152, 8192), (40_000, 1152, 100), (3_000, 16_384, 3000)],
    ids=["larger batches", "smaller batches", "wide rows"],
)
def test_a_row_group_holds_about_four_mebibytes(tmp_path: Path, rows: int, width: int, step: int) -> None:
    [file] = write_files(tmp_path, "part=a", SCHEMA, batches(rows, width=width, step=step))

    metadata = pq.ParquetFile(tmp_path / file.path).metadata
    sizes = [metadata.row_group(g).num_rows * width for g in range(metadata.num_row_groups)]
    assert max(sizes) <= 4 << 20
    assert min(sizes[:-1]) > 3 << 20


def test_no_rows_give_no_file(tmp_path: Path) -> None:
    assert write_files(tmp_path, "part=a", SCHEMA, iter([])) == []
    assert list((tmp_path / "part=a").iterdir()) == []


def test_a_failing_source_surfaces_as_itself_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(data_files, "FILE_BYTES", 1)
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 100)
    failure = KeyboardInterrupt()

    def source() -> Iterator[pa.RecordBatch]:
        yield from batches(100, width=50, step=10)
        raise failure

    with pytest.raises(KeyboardInterrupt) as caught:
        write_files(tmp_path, "part=a", SCHEMA, source())

    assert caught.value is failure
    assert list((tmp_path / "part=a").iterdir()) == []


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("tear", "seen"),
    [
        (Path.unlink, "is missing"),
        (truncate, "bytes, the log says"),
        (zero, "has the hash"),
        (flip_a_bit, "has the hash"),
    ],
    ids=["missing", "truncated", "zeroed", "one bit flipped"],
)
def test_a_damaged_file_is_seen(tmp_path: Path, tear, seen: str) -> None:
    [file] = write_files(tmp_path, "part=a", SCHEMA, batches(10, width=50, step=10))
    assert damage(tmp_path, file) is None

    tear(tmp_path / file.path)

    assert seen in str(damage(tmp_path, file))
