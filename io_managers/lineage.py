"""The check that runs before a vector is stored: every row against the work item that it came from.

Contract: `checked_batches` turns a vector stream into rows of `tables.HIDDEN_STATES`, or raises a `LineageError`. All
but the stream is to be read from the store by the caller, never from whoever made the stream. What concerns the whole
partition is checked before the stream is pulled; the rest chunk by chunk, so memory is one work item and one chunk.
Probe ids are attached by position from the stored work item; the stream has none. That the stored token ids are those
of `token_hash` follows from the stream's own hashes, which are taken of the ids that were fed. No Dagster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import xxhash

from io_managers.tables import HIDDEN_STATES
from io_managers.work_item_rows import HASH_BYTES, WorkItemRows, fixed_binary
from resources.records import (
    ITEM_SIZE,
    EngineRecord,
    EngineVerdict,
    ExtractionRequest,
    HiddenStates,
    VectorStream,
    WorkItemManifest,
    extraction_request,
    partition_digest,
)

BATCH_BYTES = 16 << 20
"""Payload bytes of one batch given to the writer, at most, and at least one row."""

_EXTRACT_AGAIN = "materialise hidden_states for this partition again; if it stays, the engine's code is at fault"
_TOKENISE_AGAIN = "materialise tokenised_batches and work_items for this partition again, then what is after them"
_ASK_AGAIN = "materialise extraction_requests for this partition, then hidden_states"
_VALIDATE = "materialise engine and engine_validation_report, then hidden_states"


class LineageError(Exception):
    """Vectors that do not add up to what was asked. `clause` is a stable short code of what was broken."""

    def __init__(self, clause: str, *, seen: object, expected: object, advice: str) -> None:
        super().__init__(f"lineage clause '{clause}': saw {seen}; expected {expected}; {advice}")
        self.clause, self.seen, self.expected, self.advice = clause, str(seen), str(expected), advice


def checked_batches(
    stream: VectorStream,
    *,
    manifest: Sequence[WorkItemManifest],
    work_items: Iterable[WorkItemRows],
    requests: Mapping[str, ExtractionRequest],
    engine: EngineRecord | None,
    verdict: EngineVerdict | None,
) -> Iterator[pa.RecordBatch]:
    """The stream's vectors as rows of `tables.HIDDEN_STATES`, each row checked before it is given.

    `requests` maps a work item's id to its request; `engine` and `verdict` (its newest validation) are None where the
    store has none. Raises `LineageError` at once for the clauses of the partition as a whole; the others are raised
    while the rows are pulled.
    """
    _check_partition(stream, manifest, requests, engine, verdict)
    return _checked(stream, manifest, work_items, requests)


def _check_partition(
    stream: VectorStream,
    manifest: Sequence[WorkItemManifest],
    requests: Mapping[str, ExtractionRequest],
    engine: EngineRecord | None,
    verdict: EngineVerdict | None,
) -> None:
    if engine is None or engine.engine_id != stream.engine_id:
        raise LineageError(
            "unknown-engine",
            seen=f"vectors of engine {stream.engine_id}",
            expected="an engine that is in the table engines",
            advice=_VALIDATE,
        )
    if verdict is None or verdict.engine_id != engine.engine_id or verdict.verdict != "proved":
        raise LineageError(
            "unvalidated-engine",
            seen=f"engine {engine.engine_id} with "
            + ("no validation report" if verdict is None else f"the newest report {verdict.verdict}: {verdict.reason}"),
            expected="a newest report that says proved",
            advice=_VALIDATE,
        )
    _same("model-key", stream.model_key, engine.model_key, "vectors", advice=_VALIDATE)
    _same("dtype", stream.dtype, engine.precision, "vectors", advice=_EXTRACT_AGAIN)
    _same("dim", stream.dim, engine.hidden_size, "vectors", advice=_EXTRACT_AGAIN)
    _same(
        "input-digest",
        stream.input_digest.hex(),
        partition_digest(manifest).hex(),
        f"partition {stream.part} as it was when its vectors were extracted",
        advice="its content changed upstream since; materialise extraction_requests and hidden_states again",
    )
    for item in manifest:
        wanted = extraction_request(
            item, engine_id=engine.engine_id, model_key=engine.model_key, dtype=engine.precision
        )
        seen = requests.get(item.work_item_id, "no request")
        _same("request", seen, wanted, f"work item {item.work_item_id}", advice=_ASK_AGAIN)


def _checked(
    stream: VectorStream,
    manifest: Sequence[WorkItemManifest],
    work_items: Iterable[WorkItemRows],
    requests: Mapping[str, ExtractionRequest],
) -> Iterator[pa.RecordBatch]:
    order = {item.work_item_id: n for n, item in enumerate(manifest)}
    stored, chunks = iter(work_items), iter(stream)
    for item in manifest:
        rows = _stored(next(stored, None), item)
        done = 0
        while done < item.n_rows:
            chunk = _belonging(next(chunks, None), stream, item, done, order)
            _check_form(chunk, stream, requests[item.work_item_id])
            _check_order(chunk, item, done)
            _check_rows(chunk, rows, done)
            yield from _batches(chunk, rows, done)
            done += len(chunk.row_index)
    if (left := next(stored, None)) is not None:
        raise LineageError(
            "stored-rows",
            seen=f"tokenised rows of work item {left.work_item_id}",
            expected=f"those of the {len(manifest)} work items in the manifest",
            advice=_TOKENISE_AGAIN,
        )
    if (extra := next(chunks, None)) is not None:
        raise LineageError(
            "unknown-work-item" if extra.work_item_id not in order else "extra-work-item",
            seen=f"{len(extra.row_index)} vectors of work item {extra.work_item_id} after the last one",
            expected=f"the end of the stream after {len(manifest)} work items",
            advice=_EXTRACT_AGAIN,
        )


def _stored(rows: WorkItemRows | None, item: WorkItemManifest) -> WorkItemRows:
    """The tokenised rows, if they are those that the manifest was made of."""
    if rows is not None and (rows.work_item_id, len(rows.probe_ids), rows.digest()) == (
        item.work_item_id,
        item.n_rows,
        item.digest,
    ):
        return rows
    raise LineageError(
        "stored-rows",
        seen="the end of tokenised_batches"
        if rows is None
        else f"work item {rows.work_item_id} with {len(rows.probe_ids)} rows that digest to {rows.digest().hex()}",
        expected=f"work item {item.work_item_id} with {item.n_rows} rows, digest {item.digest.hex()}",
        advice=_TOKENISE_AGAIN,
    )


def _belonging(
    chunk: HiddenStates | None, stream: VectorStream, item: WorkItemManifest, done: int, order: Mapping[str, int]
) -> HiddenStates:
    """The chunk, if it is of the work item whose turn it is."""
    if chunk is not None and (chunk.part, chunk.work_item_id) == (stream.part, item.work_item_id):
        return chunk
    expected = f"row {done} of {item.n_rows} of work item {item.work_item_id}"
    if chunk is None:
        clause, seen = ("missing-row" if done else "missing-work-item"), "the end of the stream"
    elif chunk.part != stream.part or chunk.work_item_id not in order:
        clause, seen = "unknown-work-item", f"work item {chunk.work_item_id} of partition {chunk.part}"
    elif done:
        clause, seen = "missing-row", f"work item {chunk.work_item_id}"
    elif order[chunk.work_item_id] < order[item.work_item_id]:
        clause, seen = "extra-work-item", f"work item {chunk.work_item_id} again"
    else:
        clause, seen = "reordered-work-item", f"work item {chunk.work_item_id}"
    raise LineageError(clause, seen=seen, expected=expected, advice=_EXTRACT_AGAIN)


def _check_form(chunk: HiddenStates, stream: VectorStream, request: ExtractionRequest) -> None:
    """What holds for the chunk as a whole."""
    where = f"vectors of work item {chunk.work_item_id}"
    _same("unknown-engine", chunk.engine_id, stream.engine_id, where, advice=_VALIDATE)
    _same("request", chunk.request_id, request.request_id, where, advice=_ASK_AGAIN)
    _same("dtype", chunk.dtype, stream.dtype, where, advice=_EXTRACT_AGAIN)
    _same("dim", chunk.dim, stream.dim, where, advice=_EXTRACT_AGAIN)
    n = len(chunk.row_index)
    width = stream.dim * ITEM_SIZE[stream.dtype]
    shapes = {
        "row_index": (n,),
        "n_tokens": (n,),
        "gathered_position": (n,),
        "gathered_token_id": (n,),
        "token_hash": (n, HASH_BYTES),
        "payload_xxh3": (n, HASH_BYTES),
        "payload": (n, width),
    }
    for name, shape in shapes.items():
        array: np.ndarray = getattr(chunk, name)
        kind = np.dtype(np.int32 if len(shape) == 1 else np.uint8)
        _same("shape", (array.dtype, array.shape), (kind, shape), f"{name} of {where}", advice=_EXTRACT_AGAIN)


def _check_order(chunk: HiddenStates, item: WorkItemManifest, done: int) -> None:
    """Rows must go on where the last chunk ended, one by one."""
    index = chunk.row_index
    wrong = np.flatnonzero((index != np.arange(done, done + len(index))) | (index >= item.n_rows))
    if len(index) and not len(wrong):
        return
    at = int(wrong[0]) if len(wrong) else 0
    expected = done + at
    if not len(index):
        clause, seen = "missing-row", "no rows"
    else:
        row, seen = int(index[at]), f"row {index[at]}"
        if not 0 <= row < item.n_rows:
            clause = "unknown-row"
        elif row < expected:
            clause = "duplicated-row"
        else:
            clause = "reordered-row" if expected in index[at:] else "missing-row"
    raise LineageError(
        clause,
        seen=f"{seen} of work item {item.work_item_id}",
        expected=f"row {expected} of {item.n_rows}",
        advice=_EXTRACT_AGAIN,
    )


def _check_rows(chunk: HiddenStates, rows: WorkItemRows, done: int) -> None:
    """Each row against the stored one at its place."""
    of = slice(done, done + len(chunk.row_index))
    digests = b"".join(map(xxhash.xxh3_128_digest, chunk.payload))
    clauses = (
        ("token-hash", chunk.token_hash, rows.token_hash[of]),
        ("n-tokens", chunk.n_tokens, rows.n_tokens[of]),
        ("gathered-position", chunk.gathered_position, rows.n_tokens[of] - 1),
        ("gathered-token", chunk.gathered_token_id, rows.last_token_ids[of]),
        ("payload-hash", np.frombuffer(digests, dtype=np.uint8).reshape(-1, HASH_BYTES), chunk.payload_xxh3),
    )
    for clause, seen, expected in clauses:
        if np.array_equal(seen, expected):
            continue
        at = int(np.flatnonzero((seen != expected).reshape(len(seen), -1).any(axis=1))[0])
        raise LineageError(
            clause,
            seen=f"{_shown(seen[at])} at row {done + at} of work item {rows.work_item_id}, "
            f"probe {rows.probe_ids[done + at].as_py()!r}",
            expected=_shown(expected[at]),
            advice=_EXTRACT_AGAIN,
        )


def _batches(chunk: HiddenStates, rows: WorkItemRows, done: int) -> Iterator[pa.RecordBatch]:
    """The chunk's rows, with what the stored work item says of them."""
    step = max(1, BATCH_BYTES // chunk.payload.shape[1])
    for start in range(0, len(chunk.row_index), step):
        new = slice(start, start + step)
        n = len(chunk.row_index[new])
        columns = {
            "part": pa.repeat(chunk.part, n),
            "work_item_id": pa.repeat(chunk.work_item_id, n),
            "row_index": pa.array(chunk.row_index[new]),
            "probe_id": rows.probe_ids[done + start : done + start + n],
            "request_id": pa.repeat(chunk.request_id, n),
            "n_tokens": pa.array(chunk.n_tokens[new]),
            "gathered_position": pa.array(chunk.gathered_position[new]),
            "gathered_token_id": pa.array(chunk.gathered_token_id[new]),
            "truncated": pa.array(rows.truncated[done + start : done + start + n]),
            "token_hash": fixed_binary(chunk.token_hash[new]),
            "engine_id": pa.repeat(chunk.engine_id, n),
            "dtype": pa.repeat(chunk.dtype, n),
            "dim": pa.array(np.full(n, chunk.dim, dtype=np.int32)),
            "payload_xxh3": fixed_binary(chunk.payload_xxh3[new]),
            "payload": fixed_binary(chunk.payload[new]),
        }
        yield pa.RecordBatch.from_arrays([columns[f.name] for f in HIDDEN_STATES.schema], schema=HIDDEN_STATES.schema)


def _same(clause: str, seen: object, expected: object, where: str, *, advice: str) -> None:
    if seen != expected:
        raise LineageError(clause, seen=f"{seen} ({where})", expected=expected, advice=advice)


def _shown(value: np.ndarray | np.integer) -> str:
    return value.tobytes().hex() if isinstance(value, np.ndarray) else str(value)
