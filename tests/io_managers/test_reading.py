"""Reading the lake back: records, bits of every dtype, streams, the engine, and SQL."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from io_managers import tables, vectors
from io_managers.errors import StoreError
from io_managers.reading import (
    StoredPartitions,
    connect,
    find_engine,
    iter_hidden_states,
    latest_verdict,
    read_engine,
    read_hidden_states,
)
from io_managers.vector_store import write_vectors
from resources.records import EngineRecord, HiddenStates, Refusal
from tests.io_managers.store import (
    ENGINE,
    PART,
    VERDICT,
    Stream,
    manifest_of,
    probe_rows,
    put,
    put_engine,
    put_upstream,
    put_verdict,
    spoil_vector,
    vectors_of,
    work_items,
)

MODEL_KEYS = {"float32": "m" * 32, "float16": "h" * 32, "bfloat16": "b" * 32}


def engine_of(dtype: str) -> EngineRecord:
    return replace(ENGINE, engine_id=dtype, model_key=MODEL_KEYS[dtype], precision=dtype)


def store(lake: Path, part: str = PART, engine: EngineRecord = ENGINE) -> list[HiddenStates]:
    items = work_items(part)
    put_upstream(lake, items, engine)
    put_verdict(lake, replace(VERDICT, report_id=engine.engine_id[:8], engine_id=engine.engine_id))
    chunks = vectors_of(items, engine)
    write_vectors(lake, Stream(items, chunks, engine), metadata={})
    return chunks


def probe(part: str, probe_id: str) -> dict[str, object]:
    return {
        "part": part,
        "probe_id": probe_id,
        "text": f"text of {probe_id}",
        "token_ids": None,
        "source_uri": "f",
        "source_row": 0,
    }


@pytest.mark.parametrize("dtype", MODEL_KEYS)
def test_the_bits_of_every_dtype_come_back(tmp_path: Path, dtype: str) -> None:
    stored = b"".join(c.payload.tobytes() for c in store(tmp_path, engine=engine_of(dtype)))

    ids, bits = read_hidden_states(PART, lake=tmp_path, as_bits=True)
    _, vectors = read_hidden_states(PART, lake=tmp_path)

    assert bits.dtype == (np.uint32 if dtype == "float32" else np.uint16)
    assert bits.shape == vectors.shape == (15, ENGINE.hidden_size)
    assert bits.tobytes() == stored
    assert set(ids["dtype"]) == {dtype}
    assert "payload" not in ids.columns
    if dtype == "bfloat16":
        assert vectors.dtype == np.float32
        assert np.array_equal(vectors.view(np.uint32), bits.astype(np.uint32) << 16)
    else:
        assert vectors.dtype == np.dtype(dtype)
        assert vectors.tobytes() == stored


def test_a_stream_gives_the_pairs_of_the_whole(tmp_path: Path) -> None:
    for part in ("set.001", "set.000"):
        store(tmp_path, part)
    ids, vectors = read_hidden_states(lake=tmp_path)

    pairs = list(iter_hidden_states(lake=tmp_path, rows=4))

    assert max(len(frame) for frame, _ in pairs) == 4
    assert [len(frame) for frame, _ in pairs] == [len(block) for _, block in pairs]
    assert np.array_equal(np.concatenate([block for _, block in pairs]), vectors)
    assert [p for frame, _ in pairs for p in frame["probe_id"]] == ids["probe_id"].to_list()
    assert ids["part"].to_list() == ["set.000"] * 15 + ["set.001"] * 15


def test_the_vectors_meant_without_a_model_are_the_only_or_the_newest_engines(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path))
    lake = tmp_path / "lake"
    with pytest.raises(StoreError, match="run `fabric extract`"):
        read_hidden_states()

    store(lake)
    assert set(read_hidden_states()[0]["dtype"]) == {"float32"}

    store(lake, engine=engine_of("float16"))
    put_engine(lake, replace(engine_of("float16"), engine_id="newest"), second=30)
    assert set(read_hidden_states()[0]["dtype"]) == {"float16"}
    assert set(read_hidden_states(model_key=ENGINE.model_key)[0]["dtype"]) == {"float32"}

    put_engine(lake, replace(ENGINE, engine_id="other", model_key="x" * 32), second=31)
    with pytest.raises(StoreError, match="name one as model_key"):
        read_hidden_states()


def test_a_partition_or_model_without_vectors_is_an_error(tmp_path: Path) -> None:
    store(tmp_path)

    with pytest.raises(StoreError, match=r"'set\.009'"):
        read_hidden_states("set.009", lake=tmp_path)
    with pytest.raises(StoreError, match="there are no vectors"):
        read_hidden_states(lake=tmp_path, model_key="x" * 32)


def test_a_torn_file_is_an_error_when_read(tmp_path: Path) -> None:
    store(tmp_path)
    [file] = tmp_path.glob("hidden_states/*/part=*/*.parquet")
    file.write_bytes(file.read_bytes()[:-20])

    with pytest.raises(StoreError, match="cannot be read"):
        read_hidden_states(PART, lake=tmp_path)


@pytest.mark.parametrize("as_bits", [False, True])
@pytest.mark.parametrize("dtype", MODEL_KEYS)
def test_a_damaged_vector_is_not_given(tmp_path: Path, dtype: str, as_bits: bool) -> None:
    engine = engine_of(dtype)
    store(tmp_path, engine=engine)
    probe_id = work_items()[1].probe_ids[3]
    spoil_vector(tmp_path, probe_id, engine=engine)

    with pytest.raises(StoreError) as caught:
        read_hidden_states(PART, lake=tmp_path, as_bits=as_bits)

    assert f"{probe_id!r} in partition {PART}" in str(caught.value)


def test_stored_partitions_give_back_the_records(tmp_path: Path) -> None:
    store(tmp_path)
    items = work_items()
    refusals = [Refusal(PART, stage, "q", "empty-text", "d", "f", 3) for stage in ("probe_sets", "tokenised_batches")]
    for refusal in refusals:
        put(tmp_path, tables.REFUSED_PROBES, [asdict(refusal)], part=PART, stage=refusal.stage)
    put(tmp_path, tables.PROBE_SETS, [probe(PART, "p1"), probe(PART, "p2")], part=PART)
    stored = StoredPartitions(tmp_path, (PART,))

    assert stored.manifest(PART) == manifest_of(items)
    assert [item.probe_ids for item in stored.work_items(PART)] == [item.probe_ids for item in items]
    assert list(stored.requests(PART, ENGINE.engine_id)) == [item.work_item_id for item in items]
    assert stored.requests(PART, "another") == {}
    assert sorted(stored.refusals(PART), key=lambda r: r.stage) == refusals
    [batch] = stored.probes(PART)
    assert batch.schema.equals(tables.PROBE_SETS.schema)
    assert batch["probe_id"].to_pylist() == ["p1", "p2"]
    assert stored.manifest("set.009") == []
    assert set(stored.versions()) == {s.name for s in tables.ALL} - {"hidden_states"}


def test_the_newest_engine_and_its_newest_verdict_are_read(tmp_path: Path) -> None:
    assert find_engine(tmp_path) is None
    assert latest_verdict(tmp_path, ENGINE.engine_id) is None
    with pytest.raises(StoreError, match="knows no engine"):
        read_engine(tmp_path)

    newer = replace(ENGINE, engine_id="f" * 32)
    put_engine(tmp_path, ENGINE, run_id="run-1", second=1)
    put_engine(tmp_path, newer, run_id="run-2", second=2)
    put_verdict(tmp_path, VERDICT, second=1)
    put_verdict(tmp_path, replace(VERDICT, report_id="r2", verdict="refused", convention=None), second=2)

    assert read_engine(tmp_path).engine_id == newer.engine_id
    assert read_engine(tmp_path, run_id="run-1").engine_id == ENGINE.engine_id
    assert read_engine(tmp_path, run_id="run-9").engine_id == newer.engine_id
    assert read_engine(tmp_path, engine_id=ENGINE.engine_id).limits == ENGINE.limits
    assert find_engine(tmp_path, engine_id="x") is None
    assert latest_verdict(tmp_path, ENGINE.engine_id) == replace(
        VERDICT, report_id="r2", verdict="refused", convention=None
    )


@pytest.mark.parametrize("home", ["home", "part=1", "stage=x/it's [a] h*me é/engine_id=2"])
def test_sql_joins_vectors_to_their_probes_wherever_the_lake_is(tmp_path: Path, home: str) -> None:
    tmp_path = tmp_path / home
    # A key that looks like a number stays a text.
    for part in ("0001", "set.000"):
        chunks = store(tmp_path, part)

    with connect(tmp_path) as connection:
        rows = connection.execute(
            "SELECT part, probe_id, p.token_ids, h.payload FROM hidden_states h JOIN probe_sets p "
            "USING (part, probe_id) WHERE part = 'set.000' ORDER BY h.work_item_id, h.row_index"
        ).fetchall()
        counts = connection.execute("SELECT part, count(*) FROM hidden_states GROUP BY part ORDER BY part").fetchall()
        refused = connection.execute("SELECT count(*) FROM refused_probes").fetchall()
        engines = connection.execute("SELECT DISTINCT part, engine_id FROM extraction_requests ORDER BY ALL").fetchall()

    assert [row[1] for row in rows] == [p for item in work_items() for p in item.probe_ids]
    assert [row[2] for row in rows] == [i.sequences[at].tolist() for i in work_items() for at in i.sequence_index]
    assert b"".join(row[3] for row in rows) == b"".join(c.payload.tobytes() for c in chunks)
    assert counts == [("0001", 15), ("set.000", 15)]
    assert refused == [(0,)]
    assert engines == [("0001", ENGINE.engine_id), ("set.000", ENGINE.engine_id)]


def test_sql_pairs_no_new_text_with_the_vector_of_an_old_one(tmp_path: Path) -> None:
    for part in ("set.000", "set.001"):
        store(tmp_path, part)
    old = probe_rows(work_items("set.001"))
    for probes, stale in (([probe("set.001", row["probe_id"]) for row in old], ["set.001"]), (old, [])):
        put(tmp_path, tables.PROBE_SETS, probes, part="set.001")

        with connect(tmp_path) as connection:
            listed = connection.execute("SELECT part FROM stale_partitions").fetchall()
            joined = connection.execute(
                "SELECT part, count(*) FROM hidden_states JOIN probe_sets USING (part, probe_id) GROUP BY part"
            ).fetchall()

        assert [part for (part,) in listed] == stale
        assert dict(joined) == {part: 15 for part in ("set.000", "set.001") if part not in stale}
        assert len(read_hidden_states("set.001", lake=tmp_path)[0]) == 15


def test_sql_about_one_partition_reads_its_files_only(tmp_path: Path) -> None:
    for part in ("set.000", "set.001"):
        put(tmp_path, tables.PROBE_SETS, [probe(part, "p")], part=part)
    [other] = (tmp_path / "probe_sets" / "part=set.001").iterdir()
    other.write_bytes(b"")

    with connect(tmp_path) as connection:
        rows = connection.execute("SELECT probe_id FROM probe_sets WHERE part = 'set.000'").fetchall()

    assert rows == [("p",)]


def test_sql_over_an_empty_lake_finds_empty_tables(tmp_path: Path) -> None:
    with connect(tmp_path) as connection:
        for spec in tables.ALL:
            assert connection.execute(f"SELECT {', '.join(spec.schema.names)} FROM {spec.name}").fetchall() == []


def test_a_reader_keeps_to_the_version_that_it_opened(tmp_path, monkeypatch):
    store(tmp_path, "a.00000")
    open_table, committed = vectors.open_table, []

    def open_before_another_commit(path):
        table = open_table(path)
        if not committed:
            committed.append(store(tmp_path, "b.00000"))
        return table

    monkeypatch.setattr(vectors, "open_table", open_before_another_commit)
    ids, matrix = read_hidden_states(lake=tmp_path)
    assert committed and set(ids["part"]) == {"a.00000"}
    assert len(ids) == len(matrix) == 15
    ids, matrix = read_hidden_states(lake=tmp_path)
    assert set(ids["part"]) == {"a.00000", "b.00000"}
    assert len(ids) == len(matrix) == 30
