"""Every clause of the lineage check, broken one at a time, leaves the table as it was and says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from io_managers import tables
from io_managers.errors import LineageError, StoreError
from io_managers.reading import read_hidden_states
from io_managers.stored_rows import stored_records
from io_managers.vector_store import write_vectors
from resources.records import HiddenStates, WorkItem, extraction_request, partition_digest
from tests.io_managers.store import (
    DIM,
    ENGINE,
    PART,
    VERDICT,
    Stream,
    attestation_of,
    manifest_of,
    probe_rows,
    put,
    put_engine,
    put_requests,
    put_upstream,
    put_verdict,
    rows_of,
    stored_state,
    token_rows,
    vectors_of,
    work_items,
)

Chunks = list[HiddenStates]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that holds vectors of the partition's earlier content, and the work items of its content now."""
    lake = tmp_path_factory.mktemp("prepared")
    earlier = work_items(seed=5)
    put_upstream(lake, earlier)
    write_vectors(lake, Stream(earlier, vectors_of(earlier)), metadata={})
    put_upstream(lake, work_items())
    return lake


@pytest.fixture
def lake(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared lake."""
    return shutil.copytree(prepared, tmp_path / "lake")


def changed(chunks: Chunks, number: int, **columns: object) -> Chunks:
    return [replace(c, **columns) if n == number else c for n, c in enumerate(chunks)]


def with_row(chunks: Chunks, column: str, value: object, *, number: int = 1, row: int = 3) -> Chunks:
    array = getattr(chunks[number], column).copy()
    array[row] = value
    return changed(chunks, number, **{column: array})


def rows_picked(chunks: Chunks, index: Sequence[int], *, number: int = 1) -> Chunks:
    return [rows_of(c, list(index)) if n == number else c for n, c in enumerate(chunks)]


VECTORS: dict[str, tuple[str, Callable[[Chunks], Chunks], str]] = {
    "of a work item that is not in the partition": (
        "unknown-work-item",
        lambda c: changed(c, 1, work_item_id=f"{PART}-00000099"),
        f"{PART}-00000099",
    ),
    "of another partition": ("unknown-work-item", lambda c: changed(c, 1, part="set.001"), "set.001"),
    "after the last work item": (
        "unknown-work-item",
        lambda c: [*c, replace(c[0], work_item_id="set.000-00000099")],
        "after the last one",
    ),
    "without a work item in the middle": ("reordered-work-item", lambda c: [c[0], c[2]], f"{PART}-00000002"),
    "without the last work item": ("missing-work-item", lambda c: c[:2], "the end of the stream"),
    "with no work item at all": ("missing-work-item", lambda c: [], "the end of the stream"),
    "with a work item twice": ("extra-work-item", lambda c: [c[0], c[0], c[1], c[2]], f"{PART}-00000000 again"),
    "with the first work item again at the end": ("extra-work-item", lambda c: [*c, c[0]], f"{PART}-00000000"),
    "with work items swapped": ("reordered-work-item", lambda c: [c[1], c[0], c[2]], f"{PART}-00000001"),
    "without a row in the middle": ("missing-row", lambda c: rows_picked(c, [0, 1, 3, 4]), "row 3"),
    "without the first row": ("missing-row", lambda c: rows_picked(c, [1, 2, 3, 4]), "row 1"),
    "without the last row": ("missing-row", lambda c: rows_picked(c, [0, 1, 2, 3]), f"{PART}-00000002"),
    "without the very last row": ("missing-row", lambda c: rows_picked(c, [0, 1, 2, 3], number=2), "the end"),
    "with an empty chunk": ("missing-row", lambda c: rows_picked(c, []), "no rows"),
    "with a row twice": ("duplicated-row", lambda c: rows_picked(c, [0, 1, 1, 2, 3, 4]), "row 1"),
    "with two rows swapped": ("reordered-row", lambda c: rows_picked(c, [0, 2, 1, 3, 4]), "row 2"),
    "with a row too many": ("unknown-row", lambda c: with_row(c, "row_index", 5, row=4), "row 5"),
    "with a negative row": ("unknown-row", lambda c: with_row(c, "row_index", -1, row=0), "row -1"),
    "of other tokens": ("token-hash", lambda c: with_row(c, "token_hash", 0), "0" * 32),
    "of another number of tokens": ("n-tokens", lambda c: with_row(c, "n_tokens", 77), "77"),
    "gathered before the last token": (
        "gathered-position",
        lambda c: changed(c, 1, gathered_position=c[1].gathered_position - np.int32(1)),
        "row 0",
    ),
    "gathered after the last token": (
        "gathered-position",
        lambda c: changed(c, 1, gathered_position=c[1].gathered_position + np.int32(1)),
        "row 0",
    ),
    "that gathered another token": ("gathered-token", lambda c: with_row(c, "gathered_token_id", 4321), "4321"),
    "with a damaged payload": ("payload-hash", lambda c: with_row(c, "payload", 255), f"{PART}/1/3é"),
    "with a damaged payload hash": ("payload-hash", lambda c: with_row(c, "payload_xxh3", 255), f"{PART}/1/3é"),
    "of another dtype": ("dtype", lambda c: changed(c, 1, dtype="float16"), "float16"),
    "of another dim": ("dim", lambda c: changed(c, 1, dim=DIM + 1), str(DIM + 1)),
    "with shorter payloads": ("shape", lambda c: changed(c, 1, payload=c[1].payload[:, :-4].copy()), "payload"),
    "with payloads of floats": ("shape", lambda c: changed(c, 1, payload=c[1].payload.view("<f4")), "float32"),
    "with fewer hashes than rows": ("shape", lambda c: changed(c, 1, token_hash=c[1].token_hash[:-1]), "token_hash"),
    "with wide row indices": ("shape", lambda c: changed(c, 1, row_index=c[1].row_index.astype("i8")), "int64"),
    "of another engine": ("unknown-engine", lambda c: changed(c, 1, engine_id="f" * 32), "f" * 32),
    "of another work item's request": (
        "request",
        lambda c: changed(c, 1, request_id=c[0].request_id),
        f"{PART}-00000001",
    ),
}


@pytest.mark.parametrize("case", VECTORS)
def test_vectors_that_do_not_add_up_are_refused(lake: Path, case: str) -> None:
    clause, tamper, seen = VECTORS[case]
    items = work_items()

    refuse(lake, Stream(items, tamper(vectors_of(items))), clause, seen)


def not_validated(lake: Path, items: list[WorkItem]) -> Stream:
    put_engine(lake, replace(ENGINE, engine_id="b" * 32))
    put_requests(lake, items, replace(ENGINE, engine_id="b" * 32))
    return stream_of(items, engine_id="b" * 32)


def refused_later(lake: Path, items: list[WorkItem]) -> Stream:
    put_verdict(lake, replace(VERDICT, report_id="r2", verdict="refused", reason="ambiguous"), second=1)
    return stream_of(items)


def refused_in_the_same_microsecond(lake: Path, items: list[WorkItem]) -> Stream:
    put_verdict(lake, replace(VERDICT, report_id="r0", verdict="refused", reason="ambiguous"))
    return stream_of(items)


def changed_upstream(lake: Path, items: list[WorkItem]) -> Stream:
    now = work_items(seed=9)
    put_upstream(lake, now)
    return stream_of(items)


def no_requests(lake: Path, items: list[WorkItem]) -> Stream:
    put(lake, tables.EXTRACTION_REQUESTS, [], part=PART, engine_id=ENGINE.engine_id)
    return stream_of(items)


def other_requests(**changes: object) -> Callable[[Path, list[WorkItem]], Stream]:
    def tamper(lake: Path, items: list[WorkItem]) -> Stream:
        put_requests(lake, items, **changes)
        return stream_of(items)

    return tamper


def swapped_requests(lake: Path, items: list[WorkItem]) -> Stream:
    ids = {"engine_id": ENGINE.engine_id, "model_key": ENGINE.model_key, "dtype": ENGINE.precision}
    requests = [asdict(extraction_request(m, **ids)) for m in manifest_of(items)]
    requests[0]["request_id"], requests[1]["request_id"] = requests[1]["request_id"], requests[0]["request_id"]
    put(lake, tables.EXTRACTION_REQUESTS, requests, part=PART, engine_id=ENGINE.engine_id)
    return stream_of(items)


def request_too_many(lake: Path, items: list[WorkItem]) -> Stream:
    put_requests(lake, work_items(items=4))
    return stream_of(items)


def token_row(row: int, **columns: object) -> Callable[[Path, list[WorkItem]], Stream]:
    def tamper(lake: Path, items: list[WorkItem]) -> Stream:
        rows = token_rows(items)
        rows[row] |= columns
        put(lake, tables.TOKENISED_BATCHES, rows, part=PART)
        return stream_of(items)

    return tamper


def token_rows_kept(kept: slice) -> Callable[[Path, list[WorkItem]], Stream]:
    def tamper(lake: Path, items: list[WorkItem]) -> Stream:
        put(lake, tables.TOKENISED_BATCHES, token_rows(items)[kept], part=PART)
        return stream_of(items)

    return tamper


def token_rows_too_many(lake: Path, items: list[WorkItem]) -> Stream:
    put(lake, tables.TOKENISED_BATCHES, token_rows(work_items(items=4)), part=PART)
    return stream_of(items)


def other_last_token(lake: Path, items: list[WorkItem]) -> Stream:
    rows = token_rows(items)
    rows[-1]["token_ids"] = [*rows[-1]["token_ids"][:-1], 1000]
    put(lake, tables.TOKENISED_BATCHES, rows, part=PART)
    return stream_of(items)


def stream_of(items: list[WorkItem], **changes: object) -> Stream:
    return Stream(items, vectors_of(items), changes=changes)


STORE: dict[str, tuple[str, Callable[[Path, list[WorkItem]], Stream], str]] = {
    "an engine that the store does not know": (
        "unknown-engine",
        lambda _, i: stream_of(i, engine_id="a" * 32),
        "a" * 32,
    ),
    "an engine without a report": ("unvalidated-engine", not_validated, "no validation report"),
    "an engine whose newest report refuses it": ("unvalidated-engine", refused_later, "ambiguous"),
    "an engine proved and refused at once": ("unvalidated-engine", refused_in_the_same_microsecond, "ambiguous"),
    "vectors for another model's table": ("model-key", lambda _, i: stream_of(i, model_key="n" * 32), "n" * 32),
    "vectors of another dtype than the engine's": ("dtype", lambda _, i: stream_of(i, dtype="float16"), "float16"),
    "vectors of another dim than the engine's": ("dim", lambda _, i: stream_of(i, dim=9), "9"),
    "content that changed upstream since": ("input-digest", changed_upstream, PART),
    "no requests": ("request", no_requests, "no request"),
    "a request for another dtype": ("request", other_requests(dtype="float16"), "float16"),
    "a request for another tap": ("request", other_requests(tap="layer_3"), "layer_3"),
    "a request to another model": ("request", other_requests(model_key="n" * 32), "n" * 32),
    "requests of each other's work items": ("request", swapped_requests, f"{PART}-00000000"),
    "a request too many": ("request", request_too_many, "after the last work item"),
    "a tokenised row of another probe": ("stored-rows", token_row(6, probe_id="stranger"), f"{PART}-00000001"),
    "a tokenised row with another hash": ("stored-rows", token_row(9, token_hash=b"x" * 16), f"{PART}-00000001"),
    "a work item too few in tokenised_batches": ("stored-rows", token_rows_kept(slice(10)), "the end"),
    "a work item too many in tokenised_batches": ("stored-rows", token_rows_too_many, f"{PART}-00000003"),
    "a tokenised row too few": ("stored-rows", token_rows_kept(slice(14)), "4 rows"),
    "another last token under the stored hash": ("gathered-token", other_last_token, f"{PART}/2/4é"),
}


@pytest.mark.parametrize("case", STORE)
def test_vectors_that_the_store_does_not_bear_out_are_refused(lake: Path, case: str) -> None:
    clause, tamper, seen = STORE[case]

    refuse(lake, tamper(lake, work_items()), clause, seen)


@pytest.mark.parametrize(
    "cuts",
    [((0, 5),), ((0, 1), (1, 5)), ((0, 2), (2, 3), (3, 5))],
    ids=lambda cuts: f"{len(cuts)} chunks a work item",
)
def test_vectors_that_add_up_are_stored_with_the_ids_of_their_work_items(
    lake: Path, cuts: tuple[tuple[int, int], ...]
) -> None:
    items = work_items()
    whole = vectors_of(items)
    chunks = [rows_of(chunk, slice(a, b)) for chunk in whole for a, b in cuts]

    committed = write_vectors(lake, Stream(items, chunks), metadata={})

    ids, vectors = read_hidden_states(PART, lake=lake)
    assert (committed.rows, committed.skipped) == (15, False)
    assert ids["probe_id"].to_list() == [probe for item in items for probe in item.probe_ids]
    assert ids["truncated"].to_list() == [bool(t) for item in items for t in item.truncated]
    assert ids["request_id"].n_unique() == 3
    assert vectors.tobytes() == b"".join(chunk.payload.tobytes() for chunk in whole)


def test_vectors_larger_than_one_batch_of_the_writer_are_stored_whole(lake: Path, monkeypatch) -> None:
    monkeypatch.setattr("io_managers.lineage.BATCH_BYTES", 70)
    items = work_items()
    chunks = vectors_of(items)

    write_vectors(lake, Stream(items, chunks), metadata={})

    ids, vectors = read_hidden_states(PART, lake=lake)
    assert ids["probe_id"].to_list() == [probe for item in items for probe in item.probe_ids]
    assert vectors.tobytes() == b"".join(chunk.payload.tobytes() for chunk in chunks)


def test_every_row_names_who_computed_it_and_the_store_says_who_that_is(lake: Path) -> None:
    items = work_items()
    stream = Stream(items, vectors_of(items))

    write_vectors(lake, stream, metadata={})

    ids, _ = read_hidden_states(PART, lake=lake)
    [row] = stored_records(lake, tables.ATTESTATIONS, {})
    assert set(ids["attestation_id"]) == {row.pop("attestation_id")} == {stream.attestation.attestation_id}
    assert row == asdict(stream.attestation)


@pytest.mark.parametrize("field", ["engine_id", "model_key"])
def test_vectors_that_another_engine_s_process_attests_are_refused(lake: Path, field: str) -> None:
    items = work_items()
    other = replace(attestation_of(ENGINE), **{field: "0" * 32})

    refuse(lake, Stream(items, vectors_of(items), changes={"attestation": other}), "attestation", "attested by host-1")


def test_a_stream_whose_content_is_stored_is_not_pulled_again(lake: Path) -> None:
    items = work_items()
    write_vectors(lake, Stream(items, vectors_of(items)), metadata={})
    again = Stream(items, vectors_of(items))

    committed = write_vectors(lake, again, metadata={})

    assert (committed.skipped, committed.rows, again.pulled, again.closed) == (True, 15, 0, True)


def test_a_failing_stream_raises_its_own_error_and_stores_nothing(lake: Path) -> None:
    items = work_items()
    before = stored_state(lake, tables.HIDDEN_STATES, ENGINE.model_key)
    failure = RuntimeError("the GPU fell off the bus")
    stream = Stream(items, vectors_of(items)[:2], failure=failure)

    with pytest.raises(RuntimeError) as caught:
        write_vectors(lake, stream, metadata={})

    assert caught.value is failure
    assert (stream.pulled, stream.closed) == (2, True)
    assert stored_state(lake, tables.HIDDEN_STATES, ENGINE.model_key) == before


@pytest.mark.parametrize(
    "probes", [probe_rows(work_items(seed=9)), []], ids=["with other content", "without the probes"]
)
def test_probes_that_changed_since_they_were_tokenised_are_refused(lake: Path, probes: list[dict[str, object]]) -> None:
    put(lake, tables.PROBE_SETS, probes, part=PART)

    refuse(lake, Stream(work_items(), vectors_of(work_items())), "stale-probes", f"work items of {PART}")


def test_probes_that_changed_are_refused_for_stored_vectors_too(lake: Path) -> None:
    stream = Stream(work_items(), vectors_of(work_items()))
    write_vectors(lake, stream, metadata={})
    put(lake, tables.PROBE_SETS, probe_rows(work_items(seed=9)), part=PART)

    refuse(lake, Stream(work_items(), vectors_of(work_items())), "stale-probes", "those stored now")


def test_vectors_of_work_items_that_were_never_materialised_are_refused(tmp_path: Path) -> None:
    put_engine(tmp_path)
    put_verdict(tmp_path)
    nothing = Stream(work_items(), [], changes={"input_digest": partition_digest([])})

    with pytest.raises(StoreError, match=f"work_items of {PART} was never materialised"):
        write_vectors(tmp_path, nothing, metadata={})

    assert stored_state(tmp_path, tables.HIDDEN_STATES, ENGINE.model_key) is None


def test_a_partition_without_work_items_is_stored_empty(lake: Path) -> None:
    for spec in (tables.TOKENISED_BATCHES, tables.WORK_ITEMS):
        put(lake, spec, [], part=PART)
    put(lake, tables.EXTRACTION_REQUESTS, [], part=PART, engine_id=ENGINE.engine_id)
    nothing = Stream(work_items(), [], changes={"input_digest": partition_digest([])})

    assert write_vectors(lake, nothing, metadata={}).rows == 0

    ids, vectors = read_hidden_states(PART, lake=lake)
    assert (len(ids), vectors.shape) == (0, (0, 0))


def refuse(lake: Path, stream: Stream, clause: str, seen: str) -> None:
    """The stream is refused for `clause`, and the vectors stored before are untouched."""
    before = stored_state(lake, tables.HIDDEN_STATES, ENGINE.model_key)
    assert before is not None

    with pytest.raises(LineageError) as caught:
        write_vectors(lake, stream, metadata={})

    error = caught.value
    assert error.clause == clause
    assert seen in error.seen + error.expected
    assert all(part in str(error) for part in (clause, error.seen, error.expected, error.advice))
    assert "materialise" in error.advice
    assert stored_state(lake, tables.HIDDEN_STATES, ENGINE.model_key) == before
    assert stream.closed
