"""The write protocol and everything that reads, on an object store: a real server of S3's protocol on loopback."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="needs the extra `object-store`")
pytest.importorskip("moto", reason="needs the extra `object-store-tests`")

from io_managers import tables
from io_managers.contents import stored_contents
from io_managers.delta_table import write_partition
from io_managers.errors import StoreError
from io_managers.open_tables import open_table, table_path
from io_managers.places import ObjectPath, place
from io_managers.reading import connect, export_partition, read_hidden_states
from io_managers.stored_rows import data_files, stored_models, stored_records
from io_managers.vector_store import write_vectors
from tests.io_managers.store import ENGINE, PART, Stream, put_upstream, vectors_of, work_items
from tests.io_managers.test_delta_table import FIVE, OTHER, Source, row
from tests.object_store import object_store

SPEC = tables.WORK_ITEMS
WRITER = """
import sys
from io_managers import tables
from io_managers.delta_table import write_partition
from tests.io_managers.test_delta_table import Source, row
lake, parts = sys.argv[1], sys.argv[2:]
sys.stdin.read(1)
for part in parts:
    write = Source([row(n, part) for n in range(7)], part=part).write()
    print("skipped" if write_partition(lake, tables.WORK_ITEMS, write).skipped else "stored", flush=True)
"""


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store("lake") as environment, pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        yield "s3://lake"


@pytest.fixture
def lake(bucket: str) -> str:
    return f"{bucket}/{uuid.uuid4().hex}"


def start(lake: str, parts: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, lake, *parts], stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[2]
    )


def finish(writers: list[subprocess.Popen[str]]) -> list[list[str]]:
    """Lets them all begin at once; what each has said, once all have ended."""
    for writer in writers:
        writer.stdin.write("x")
        writer.stdin.flush()
    said = [writer.communicate(timeout=120)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * len(writers)
    return said


def rows_of(lake: str, part: str = "a") -> list[dict[str, object]]:
    return list(stored_records(lake, SPEC, {"part": part}))


def test_a_partition_is_stored_in_order_skipped_when_it_is_there_and_replaced_alone(lake: str) -> None:
    neighbour = [row(1, "b")]
    assert not write_partition(lake, SPEC, Source(FIVE).write()).skipped
    write_partition(lake, SPEC, Source(neighbour, part="b").write())
    again = Source(FIVE)
    assert write_partition(lake, SPEC, again.write()).skipped
    assert again.pulls == 0
    assert (rows_of(lake), rows_of(lake, "b")) == (FIVE, neighbour)

    write_partition(lake, SPEC, Source(OTHER).write())

    assert (rows_of(lake), rows_of(lake, "b")) == (OTHER, neighbour)
    assert set(stored_contents(lake, SPEC).content) == {"a", "b"}


def test_a_source_that_fails_leaves_the_table_and_its_objects_as_they_were(lake: str) -> None:
    write_partition(lake, SPEC, Source(FIVE).write())
    before = objects(lake)

    with pytest.raises(ZeroDivisionError):
        write_partition(lake, SPEC, Source(OTHER, failure=ZeroDivisionError()).write())

    assert objects(lake) == before
    assert rows_of(lake) == FIVE


def test_processes_that_write_other_partitions_at_once_lose_and_double_nothing(lake: str) -> None:
    parts = [[f"{writer}{number}" for number in range(8)] for writer in "ab"]
    finish([start(lake, mine) for mine in parts])

    stored = list(stored_records(lake, SPEC, {}))
    assert sorted(r["part"] for r in stored) == sorted(part for mine in parts for part in mine for _ in range(7))


def test_of_two_processes_with_one_partition_one_commits(lake: str) -> None:
    write_partition(lake, SPEC, Source([row(1, "b")], part="b").write())

    said = finish([start(lake, ["a"]), start(lake, ["a"])])

    assert sorted(said) == [["skipped"], ["stored"]]
    assert len(rows_of(lake)) == 7
    assert len(data_files(lake, SPEC, {"part": "a"})) == 1


def test_an_object_that_was_changed_is_refused_when_it_is_read(lake: str, tmp_path: Path) -> None:
    write_partition(lake, SPEC, Source(FIVE).write())
    [file] = data_files(lake, SPEC, {"part": "a"})
    path = table_path(lake, SPEC) / file.path
    assert isinstance(path, ObjectPath)
    with path.open() as stored:
        data = bytearray(stored.read())
    data[30] ^= 1
    (tmp_path / "changed").write_bytes(data)
    path.upload(tmp_path / "changed")

    with pytest.raises(StoreError, match=r"s3://lake/.* cannot be read"):
        rows_of(lake)
    path.unlink()
    assert not write_partition(lake, SPEC, Source(FIVE).write()).skipped
    assert rows_of(lake) == FIVE


def test_vectors_are_checked_stored_read_joined_and_exported(lake: str, tmp_path: Path) -> None:
    items = work_items()
    put_upstream(lake, items)
    chunks = vectors_of(items)

    write_vectors(lake, Stream(items, chunks), metadata={})
    again = Stream(items, chunks)
    assert write_vectors(lake, again, metadata={}).skipped
    assert again.pulled == 0

    ids, vectors = read_hidden_states(PART, lake=lake)
    assert vectors.tobytes() == b"".join(chunk.payload.tobytes() for chunk in chunks)
    assert stored_models(lake) == [ENGINE.model_key]
    joined = connect(lake).sql("SELECT probe_id FROM hidden_states JOIN probe_sets USING (part, probe_id)").fetchall()
    assert sorted(name for (name,) in joined) == sorted(ids["probe_id"])
    assert export_partition(PART, tmp_path / "out.npy", lake=lake) == len(ids)


def test_what_is_not_there_is_as_on_a_disk(lake: str) -> None:
    assert open_table(table_path(lake, SPEC)) is None
    assert stored_models(lake) == []
    nothing = place(lake) / "nothing"
    assert not nothing.is_dir()
    for ask in (nothing.stat, nothing.read_text):
        with pytest.raises(FileNotFoundError):
            ask()


def objects(lake: str) -> dict[str, int]:
    """The size of every object below the lake."""
    import obstore
    from obstore.store import from_url

    return {o["path"]: o["size"] for page in obstore.list(from_url("s3://lake"), lake.rpartition("/")[2]) for o in page}
