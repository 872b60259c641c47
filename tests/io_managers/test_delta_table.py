"""The write protocol: idempotent, atomic, loud about conflicts, verified."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from io_managers import delta_table, tables
from io_managers.delta_table import PartitionWrite, janitor, write_partition
from io_managers.errors import StoreError
from io_managers.open_tables import open_table, table_path
from io_managers.stored_rows import stored_records
from resources.records import digest
from tests.io_managers.store import flip_a_bit, stored_state

SPEC = tables.WORK_ITEMS


def row(number: int, part: str = "a") -> dict[str, object]:
    return {
        "part": part,
        "work_item_id": f"{part}-{number:08d}",
        "n_rows": number,
        "n_sequences": 1,
        "n_tokens": 1,
        "max_tokens": 1,
        "digest": b"d" * 16,
        "tokenizer_id": "t",
        "probes_digest": b"p" * 8,
    }


def batch(rows: Sequence[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SPEC.schema)


class Source:
    """A write of `rows` in batches of two, which counts how often it is pulled."""

    def __init__(self, rows: Sequence[dict[str, object]], *, part: str = "a", failure: BaseException | None = None):
        self.rows, self.part, self.failure, self.pulls = rows, part, failure, 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        self.pulls += 1
        for start in range(0, len(self.rows), 2):
            yield batch(self.rows[start : start + 2])
        if self.failure is not None:
            raise self.failure

    def write(self, **changes: object) -> PartitionWrite:
        content = digest(repr(r).encode() for r in self.rows)
        write = PartitionWrite({"part": self.part}, content, len(self.rows), self.batches, {"run_id": "run-1"})
        return replace(write, **changes)


def rows_of(lake: Path, part: str = "a") -> list[dict[str, object]]:
    return list(stored_records(lake, SPEC, {"part": part}))


FIVE = [row(n) for n in range(5)]
OTHER = [row(n) for n in range(7, 10)]


def test_a_partition_is_stored_in_order_and_stamped(tmp_path: Path) -> None:
    committed = write_partition(tmp_path, SPEC, Source(FIVE).write())

    assert rows_of(tmp_path) == FIVE
    assert (committed.rows, committed.skipped) == (5, False)
    table = open_table(table_path(tmp_path, SPEC))
    [entry] = table.history(1)
    assert (entry["version"], entry["run_id"], entry["part"], entry["rows"]) == (committed.version, "run-1", "a", "5")
    assert entry["content_digest"] == Source(FIVE).write().content_digest.hex()


def test_content_that_is_stored_is_neither_pulled_nor_written_again_in_milliseconds(tmp_path: Path) -> None:
    first = write_partition(tmp_path, SPEC, Source(FIVE).write())
    before, again = stored_state(tmp_path, SPEC), Source(FIVE)
    seconds = []

    for _ in range(5):
        started = time.perf_counter()
        committed = write_partition(tmp_path, SPEC, again.write())
        seconds.append(time.perf_counter() - started)

    assert committed == replace(first, skipped=True)
    assert again.pulls == 0
    assert stored_state(tmp_path, SPEC) == before
    assert min(seconds) < 0.1


def test_other_content_replaces_the_partition_and_nothing_else(tmp_path: Path) -> None:
    neighbour = [row(n, "b") for n in range(3)]
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    write_partition(tmp_path, SPEC, Source(neighbour, part="b").write())

    write_partition(tmp_path, SPEC, Source(OTHER).write())
    assert (rows_of(tmp_path), rows_of(tmp_path, "b")) == (OTHER, neighbour)

    # Content that was stored before, but is not now, is written again.
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    assert (rows_of(tmp_path), rows_of(tmp_path, "b")) == (FIVE, neighbour)


def test_an_empty_partition_is_a_commit_like_any_other(tmp_path: Path) -> None:
    write_partition(tmp_path, SPEC, Source(FIVE).write())

    assert write_partition(tmp_path, SPEC, Source([]).write()).skipped is False
    assert rows_of(tmp_path) == []
    assert write_partition(tmp_path, SPEC, Source([]).write()).skipped is True
    assert write_partition(tmp_path, SPEC, Source([], part="never").write()).rows == 0


def test_a_scope_of_two_columns_replaces_only_its_own_rows(tmp_path: Path) -> None:
    spec = tables.REFUSED_PROBES

    def refusals(stage: str, reason: str) -> PartitionWrite:
        row = dict(zip(spec.schema.names, ["a", stage, "p", reason, "", "f", 0], strict=True))
        rows = pa.RecordBatch.from_pylist([row], schema=spec.schema)
        return PartitionWrite({"stage": stage, "part": "a"}, digest([reason.encode()]), 1, lambda: iter([rows]), {})

    for write in (refusals("s1", "old"), refusals("s2", "kept"), refusals("s1", "new")):
        write_partition(tmp_path, spec, write)

    assert {(r["stage"], r["reason"]) for r in stored_records(tmp_path, spec, {"part": "a"})} == {
        ("s1", "new"),
        ("s2", "kept"),
    }


WRONG: dict[str, tuple[Callable[[], PartitionWrite], str]] = {
    "too few rows": (lambda: Source(FIVE).write(n_rows=6), "5 rows"),
    "too many rows": (lambda: Source(FIVE).write(n_rows=3), "or more"),
    "no rows": (lambda: Source([]).write(n_rows=1), "0 rows"),
    "a row of another partition": (lambda: Source([*FIVE, row(9, "b")]).write(), "work_items.part"),
    "a null": (lambda: Source([*FIVE, row(9) | {"n_rows": None}]).write(), "work_items.n_rows has nulls"),
    "other columns": (
        lambda: Source(FIVE).write(batches=lambda: iter([batch(FIVE).select(["part", "n_rows"])])),
        "expected",
    ),
    "a wider type": (
        lambda: Source(FIVE).write(
            batches=lambda: iter([pa.RecordBatch.from_pylist(FIVE, schema=SPEC.schema.set(2, _WIDE))])
        ),
        "n_rows: int64",
    ),
    "a short digest": (lambda: Source(FIVE).write(content_digest=b"x" * 8), "8 bytes"),
    "no scope": (lambda: Source(FIVE).write(scope={}), "[]"),
    "a scope with too much": (lambda: Source(FIVE).write(scope={"part": "a", "n_rows": "1"}), "n_rows"),
    "an empty partition key": (lambda: Source([], part="").write(), "''"),
    "a partition key with a slash": (lambda: Source([], part="a/b").write(), "'a/b'"),
    "a partition key that climbs": (lambda: Source([], part="..").write(), "'..'"),
    "a partition key with a line end": (lambda: Source([], part="a\n").write(), r"'a\n'"),
    "a partition key that is too long": (lambda: Source([], part="a" * 129).write(), "aaa"),
}
_WIDE = pa.field("n_rows", pa.int64(), nullable=False)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_write_is_refused_and_stores_nothing(tmp_path: Path, case: str) -> None:
    write_partition(tmp_path, SPEC, Source(OTHER).write())
    before = stored_state(tmp_path, SPEC)
    make, seen = WRONG[case]

    with pytest.raises(StoreError) as caught:
        write_partition(tmp_path, SPEC, make())

    assert seen in str(caught.value)
    assert stored_state(tmp_path, SPEC) == before


@pytest.mark.parametrize("failure", [ValueError("boom"), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_an_exception_of_the_source_surfaces_as_itself_and_stores_nothing(
    tmp_path: Path, failure: BaseException
) -> None:
    write_partition(tmp_path, SPEC, Source(OTHER).write())
    before, source = stored_state(tmp_path, SPEC), Source(FIVE, failure=failure)

    with pytest.raises(type(failure)) as caught:
        write_partition(tmp_path, SPEC, source.write())

    assert caught.value is failure
    assert source.pulls == 1
    assert stored_state(tmp_path, SPEC) == before


def rival_commits(monkeypatch: pytest.MonkeyPatch, *rivals: Callable[[], object]) -> None:
    """Lets each rival commit between the reading of the table and one of our tries to commit."""
    real, waiting = DeltaTable.create_write_transaction, list(rivals)

    def commit(self: DeltaTable, *args: object, **settings: object) -> None:
        if waiting:
            rival = waiting.pop(0)
            with monkeypatch.context() as undisturbed:
                undisturbed.setattr(DeltaTable, "create_write_transaction", real)
                rival()
        real(self, *args, **settings)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)


def test_a_commit_that_loses_to_other_partitions_is_tried_again_without_pulling_again(tmp_path, monkeypatch) -> None:
    write_partition(tmp_path, SPEC, Source([]).write())
    rivals = [lambda p=p: write_partition(tmp_path, SPEC, Source([row(1, p)], part=p).write()) for p in "bcd"]
    rival_commits(monkeypatch, *rivals)
    source = Source(FIVE)

    assert write_partition(tmp_path, SPEC, source.write()).skipped is False

    assert source.pulls == 1
    assert rows_of(tmp_path) == FIVE
    assert [rows_of(tmp_path, p) for p in "bcd"] == [[row(1, p)] for p in "bcd"]


def test_losing_to_the_same_content_is_success_with_one_copy(tmp_path: Path, monkeypatch) -> None:
    rival_commits(monkeypatch, lambda: write_partition(tmp_path, SPEC, Source(FIVE).write()))

    committed = write_partition(tmp_path, SPEC, Source(FIVE).write())

    assert (committed.skipped, committed.rows) == (True, 5)
    assert rows_of(tmp_path) == FIVE
    assert len(stored_state(tmp_path, SPEC)[1]) == 1


def test_losing_to_other_content_of_the_partition_is_an_error(tmp_path: Path, monkeypatch) -> None:
    rival_commits(monkeypatch, lambda: write_partition(tmp_path, SPEC, Source(OTHER).write()))
    source = Source(FIVE)

    with pytest.raises(StoreError, match="replaced with other content"):
        write_partition(tmp_path, SPEC, source.write())

    assert source.pulls == 1
    assert rows_of(tmp_path) == OTHER
    assert len(stored_state(tmp_path, SPEC)[1]) == 1


def test_a_commit_gives_up_after_its_patience(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(delta_table, "COMMIT_PATIENCE_S", 0.0)
    rival_commits(monkeypatch, lambda: write_partition(tmp_path, SPEC, Source([row(1, "b")], part="b").write()))

    with pytest.raises(StoreError, match="lost the race"):
        write_partition(tmp_path, SPEC, Source(FIVE).write())

    assert rows_of(tmp_path) == []
    assert len(stored_state(tmp_path, SPEC)[1]) == 1


def test_an_error_after_a_commit_that_went_through_is_not_a_second_commit(tmp_path: Path, monkeypatch) -> None:
    real = DeltaTable.create_write_transaction

    def commit(self: DeltaTable, *args: object, **settings: object) -> None:
        real(self, *args, **settings)
        raise delta_table.CommitFailedError("the answer was lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)

    committed = write_partition(tmp_path, SPEC, Source(FIVE).write())

    assert (committed.version, committed.skipped) == (1, False)
    assert rows_of(tmp_path) == FIVE


@pytest.mark.parametrize("content", [FIVE, OTHER], ids=["the same content", "other content"])
@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda f: f.write_bytes(b""), lambda f: f.write_bytes(f.read_bytes()[:40]), flip_a_bit],
    ids=["missing", "empty", "truncated", "one bit flipped"],
)
def test_a_damaged_partition_is_written_again(tmp_path: Path, damage: Callable[[Path], object], content) -> None:
    write_partition(tmp_path, SPEC, Source([row(1, "b")], part="b").write())
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    [file] = (table_path(tmp_path, SPEC) / "part=a").iterdir()
    damage(file)

    committed = write_partition(tmp_path, SPEC, Source(content).write())

    assert committed.skipped is False
    assert (rows_of(tmp_path), rows_of(tmp_path, "b")) == (content, [row(1, "b")])


def test_a_table_of_an_older_version_gets_the_columns_that_came_since(tmp_path: Path) -> None:
    newer = replace(
        SPEC, schema=SPEC.schema.append(pa.field("note", pa.list_(pa.field("element", pa.string(), False))))
    )
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    rows = [r | {"note": ["new"]} for r in (row(1, "b"), row(2, "b"))]
    batches = [pa.RecordBatch.from_pylist(rows, schema=newer.schema)]

    write_partition(tmp_path, newer, Source(rows, part="b").write(batches=lambda: iter(batches)))

    assert list(stored_records(tmp_path, newer, {"part": "a"})) == [r | {"note": None} for r in FIVE]
    assert list(stored_records(tmp_path, newer, {"part": "b"})) == rows
    assert write_partition(tmp_path, newer, Source(FIVE).write()).skipped
    with pytest.raises(StoreError, match="move that folder away"):
        write_partition(tmp_path, SPEC, Source(OTHER).write())


def test_a_table_of_another_shape_is_refused(tmp_path: Path) -> None:
    old = pa.schema([SPEC.schema.field("part"), SPEC.schema.field("work_item_id")])
    DeltaTable.create(table_path(tmp_path, SPEC), Schema.from_arrow(old), partition_by=["part"])

    with pytest.raises(StoreError, match="move that folder away"):
        write_partition(tmp_path, SPEC, Source(FIVE).write())


@pytest.mark.parametrize(
    ("lake", "spec", "model_key", "seen"),
    [
        ("ftp://host/lake", SPEC, None, "ftp://host/lake"),
        ("lake", SPEC, "m", "not per model"),
        ("lake", tables.HIDDEN_STATES, None, "per model"),
        ("lake", tables.HIDDEN_STATES, "../m", "../m"),
    ],
    ids=["another store", "a key too many", "a key too few", "a key that climbs"],
)
def test_a_table_that_cannot_be_located_is_refused(lake: str, spec, model_key, seen: str) -> None:
    with pytest.raises(StoreError) as caught:
        table_path(lake, spec, model_key)
    assert seen in str(caught.value)


def test_the_janitor_removes_only_old_leftovers(tmp_path: Path) -> None:
    write_partition(tmp_path, SPEC, Source(FIVE).write())
    root = table_path(tmp_path, SPEC)
    leftovers = [root / "part=a" / "part-00000-x.parquet.tmp", root / "_delta_log" / "00000000000000000009.json#1"]
    for leftover in leftovers:
        leftover.write_bytes(b"")

    assert janitor(tmp_path) == 0
    assert janitor(tmp_path, older_than_s=-1) == 2
    assert not any(leftover.exists() for leftover in leftovers)
    assert rows_of(tmp_path) == FIVE
