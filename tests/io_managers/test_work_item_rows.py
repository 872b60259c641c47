"""Tokenised rows come back as the work items that they were, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from io_managers import tables
from io_managers.errors import StoreError
from io_managers.work_item_rows import binary_rows, fixed_binary, work_item_rows
from resources.records import WorkItem
from tests.io_managers.store import PART, manifest_of, token_rows, work_items

Rows = list[dict[str, Any]]


def batches(rows: Rows, step: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), step):
        yield pa.RecordBatch.from_pylist(rows[start : start + step], schema=tables.TOKENISED_BATCHES.schema)


def assert_same(seen: WorkItem, expected: WorkItem) -> None:
    assert (seen.part, seen.work_item_id, seen.probe_ids) == (expected.part, expected.work_item_id, expected.probe_ids)
    assert len(seen.sequences) == len(expected.sequences)
    assert all(np.array_equal(a, b) for a, b in zip(seen.sequences, expected.sequences, strict=True))
    for name in ("sequence_index", "token_hashes", "truncated"):
        a, b = getattr(seen, name), getattr(expected, name)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.array_equal(a, b)


@pytest.mark.parametrize("step", [1, 3, 5, 7, 1000], ids=lambda step: f"batches of {step}")
def test_work_items_come_back_as_they_were(step: int) -> None:
    items = work_items(items=4, rows=6)

    rows = list(work_item_rows(PART, batches(token_rows(items), step)))

    for seen, expected, listed in zip(rows, items, manifest_of(items), strict=True):
        assert_same(seen.work_item(), expected)
        assert seen.digest == listed.digest
        assert seen.last_token_ids.tolist() == [expected.sequences[i][-1] for i in expected.sequence_index]


def test_the_digest_is_that_of_the_records_whatever_the_ids(step: int = 2) -> None:
    ids = ["", "a", "ab", "\x00", "é" * 300, "日本語", "a\nb"]
    rows = token_rows(work_items(items=1, rows=len(ids)))
    for row, probe_id in zip(rows, ids, strict=True):
        row["probe_id"] = probe_id
    [item] = [r.work_item() for r in work_item_rows(PART, batches(rows, step))]

    [seen] = work_item_rows(PART, batches(rows, step))

    assert seen.digest == manifest_of([item])[0].digest


def test_nothing_stored_gives_no_work_items() -> None:
    assert list(work_item_rows(PART, iter([]))) == []


def set_row(number: int, **columns: object) -> Callable[[Rows], Rows]:
    return lambda rows: [row | columns if n == number else row for n, row in enumerate(rows)]


WRONG: dict[str, tuple[Callable[[Rows], Rows], str]] = {
    "work items out of order": (lambda rows: rows[5:10] + rows[:5], f"{PART}-00000000 after {PART}-00000001"),
    "a work item in two pieces": (lambda rows: rows[:5] + rows[5:10] + rows[:5], "after"),
    "rows out of order": (lambda rows: [rows[1], rows[0], *rows[2:]], "row indices"),
    "a row twice": (lambda rows: [rows[0], *rows], "row indices"),
    "a row too few": (lambda rows: rows[1:], "row indices"),
    "fewer tokens than said": (set_row(2, token_ids=[]), "n_tokens"),
    "more tokens than said": (set_row(2, token_ids=[1] * 99), "n_tokens"),
    "a sequence index that jumps": (set_row(4, sequence_index=9), "sequence indices"),
    "a sequence index that falls": (set_row(4, sequence_index=0), "sequence indices"),
    "a sequence index that starts late": (set_row(0, sequence_index=1), "sequence indices"),
    "two hashes of one sequence": (set_row(1, token_hash=b"x" * 16), "different token hashes"),
    "a short hash": (set_row(3, token_hash=b"x" * 15), "15"),
}


@pytest.mark.parametrize("step", [4, 1000])
@pytest.mark.parametrize("case", WRONG)
def test_rows_that_do_not_make_work_items_are_refused(case: str, step: int) -> None:
    tamper, seen = WRONG[case]

    with pytest.raises(StoreError) as caught:
        list(work_item_rows(PART, batches(tamper(token_rows(work_items())), step)))

    assert seen in str(caught.value)
    assert "materialise" in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 16), (3, 16), (2, 5)])
def test_rows_of_bytes_survive_arrow(shape: tuple[int, int]) -> None:
    rows = np.arange(shape[0] * shape[1], dtype=np.uint8).reshape(shape)

    column = fixed_binary(rows)

    assert column.to_pylist() == [row.tobytes() for row in rows]
    assert np.array_equal(binary_rows(column, shape[1]), rows)
    assert np.array_equal(binary_rows(column[1:], shape[1]), rows[1:])
