from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources import external_sort
from resources.external_sort import ExternalSort

SCHEMA = pa.schema([("number", pa.int32()), ("raw", pa.binary()), ("name", pa.string()), ("ids", pa.list_(pa.int32()))])
KEY = ("number", "raw", "name")
BYTES = st.binary(max_size=3)
NAMES = st.text("aé\U0001f600z\x00\uffff", max_size=3)
ROWS = st.lists(st.tuples(st.integers(-2, 2), BYTES, NAMES, st.lists(st.integers(0, 9), max_size=9)), max_size=30)


def batch(rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def key(row: tuple) -> tuple:
    return row[0], row[1], row[2].encode()


@settings(max_examples=60)
@given(st.lists(ROWS, max_size=6), st.sampled_from([1, 100, 1 << 20]), st.sampled_from([1, 60, 1 << 20]))
def test_rows_come_out_in_order_whatever_batches_runs_and_slices_there_are(batches, run_bytes, slice_bytes):
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(external_sort, "RUN_BYTES", run_bytes)
        patch.setattr(external_sort, "SLICE_BYTES", slice_bytes)
        with ExternalSort(SCHEMA, KEY, Path(folder)) as rows:
            for given_rows in batches:
                rows.add(batch(given_rows))
            out = [tuple(row.values()) for merged in rows.merged() for row in merged.to_pylist()]
    assert [key(row) for row in out] == sorted(key(row) for rows in batches for row in rows)
    assert sorted(map(repr, out)) == sorted(repr(tuple(row)) for rows in batches for row in rows)


def test_only_a_slice_of_each_run_is_read_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(external_sort, "RUN_BYTES", 100_000)
    monkeypatch.setattr(external_sort, "SLICE_BYTES", 2_000)
    with ExternalSort(SCHEMA, KEY, tmp_path) as rows:
        for first in range(0, 20_000, 100):
            rows.add(batch([(number * 7919 % 20_000, b"", "", [1] * 10) for number in range(first, first + 100)]))
        runs = len(list(tmp_path.glob(".sort-*/*.arrow")))
        sizes = [merged.nbytes for merged in rows.merged()]
    assert runs > 5 and max(sizes) <= (runs + 1) * 2_000


def test_leaving_removes_the_files(tmp_path):
    with ExternalSort(SCHEMA, KEY, tmp_path) as rows:
        rows.add(batch([(1, b"", "", [])]))
        next(rows.merged())
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []
