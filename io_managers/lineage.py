"""The check that runs before a vector is stored: every row against the work item that it came from.

Contract: `checked_batches` turns a vector stream into rows of `tables.HIDDEN_STATES`, or raises a `LineageError`. All
but the stream is to be read from the store by the caller, never from whoever made the stream. What concerns the whole
partition is checked before the stream is pulled; the rest as it comes, so memory is about one work item and one batch.
Probe ids are attached by position from the stored work item; the stream has none. That the stored token ids are those
of `token_hash` follows from the stream's own hashes, which are taken of the ids that were fed. No Dagster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from io_managers.errors import LineageError
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

BATCH_BYTES = 4 << 20
"""Payload bytes of one batch given to the writer, about; chunks are gathered or cut to it."""

_EXTRACT_AGAIN = "materialise hidden_states for this partition again; if it stays, the engine's code is at fault"
_TOKENISE_AGAIN = "materialise tokenised_batches and work_items for this partition again, then what is after them"
_ASK_AGAIN = "materialise extraction_requests for this partition, then hidden_states"
_VALIDATE = "materialise engine and engine_validation_report, then hidden_states"


def checked_batches(
    stream: VectorStream,
    *,
    manifest: Sequence[WorkItemManifest],
    probes_digest: bytes | None,
    work_items: Iterable[WorkItemRows],
    requests: Iterable[ExtractionRequest],
    engine: EngineRecord | None,
    verdict: EngineVerdict | None,
) -> Iterator[pa.RecordBatch]:
    """The stream's vectors as rows of `tables.HIDDEN_STATES`, each row checked before it is given.

    `work_items` and `requests` come in the order of the manifest; `probes_digest` is of the probes as they are stored
    now. It, `engine` and `verdict` (the engine's newest validation) are None where the store has none. Raises
    `LineageError` at once for the clauses of the partition as a whole; the others are raised while the rows are pulled.
    """
    _check_partition(stream, manifest, engine, verdict)
    _check_probes(stream.part, manifest, probes_digest)
    return _checked(stream, manifest, work_items, _request_ids(stream, manifest, requests))


def _check_partition(
    stream: VectorStream,
    manifest: Sequence[WorkItemManifest],
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


def _check_probes(part: str, manifest: Sequence[WorkItemManifest], probes_digest: bytes | None) -> None:
    """The work items must be made of the probes that the store has now, or a vector would be joined to another text."""
    made_of = {item.probes_digest for item in manifest}
    if made_of - {probes_digest}:
        raise LineageError(
            "stale-probes",
            seen=f"work items of {part} made of probes with digest {', '.join(sorted(d.hex() for d in made_of))}",
            expected="no probes" if probes_digest is None else f"those stored now, {probes_digest.hex()}",
            advice=_TOKENISE_AGAIN,
        )


def _request_ids(
    stream: VectorStream, manifest: Sequence[WorkItemManifest], requests: Iterable[ExtractionRequest]
) -> list[str]:
    """The id of each work item's request, once all of them are what must have been asked."""
    stored, ids = iter(requests), []
    for item in manifest:
        wanted = extraction_request(item, engine_id=stream.engine_id, model_key=stream.model_key, dtype=stream.dtype)
        seen = next(stored, "no request")
        _same("request", seen, wanted, f"work item {item.work_item_id}", advice=_ASK_AGAIN)
        ids.append(wanted.request_id)
    _same("request", next(stored, None), None, "after the last work item", advice=_ASK_AGAIN)
    return ids


def _checked(
    stream: VectorStream,
    manifest: Sequence[WorkItemManifest],
    work_items: Iterable[WorkItemRows],
    request_ids: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    order = {item.work_item_id: n for n, item in enumerate(manifest)}
    stored, chunks = iter(work_items), iter(stream)
    pieces: list[_Piece] = []
    size = 0
    for item, request_id in zip(manifest, request_ids, strict=True):
        rows = _stored(next(stored, None), item)
        done = 0
        while done < item.n_rows:
            chunk = _belonging(next(chunks, None), stream, item, done, order)
            _check_form(chunk, stream, request_id)
            _check_order(chunk, item, done)
            for piece in _cut(chunk, rows, done):
                pieces.append(piece)
                size += piece.chunk.payload[piece.new].nbytes
                if size >= BATCH_BYTES:
                    yield _batch(pieces, _attested_by(stream))
                    pieces, size = [], 0
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
    if pieces:
        yield _batch(pieces, _attested_by(stream))


def _attested_by(stream: VectorStream) -> str:
    """The id of what the computing process says of itself; known once the stream was pulled."""
    said = stream.attestation
    _same("attestation", said.engine_id, stream.engine_id, f"attested by {said.worker}", advice=_EXTRACT_AGAIN)
    _same("attestation", said.model_key, stream.model_key, f"attested by {said.worker}", advice=_EXTRACT_AGAIN)
    return said.attestation_id


def _stored(rows: WorkItemRows | None, item: WorkItemManifest) -> WorkItemRows:
    """The tokenised rows, if they are those that the manifest was made of."""
    if rows is not None and (rows.work_item_id, len(rows.probe_ids), rows.digest) == (
        item.work_item_id,
        item.n_rows,
        item.digest,
    ):
        return rows
    raise LineageError(
        "stored-rows",
        seen="the end of tokenised_batches"
        if rows is None
        else f"work item {rows.work_item_id} with {len(rows.probe_ids)} rows that digest to {rows.digest.hex()}",
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


def _check_form(chunk: HiddenStates, stream: VectorStream, request_id: str) -> None:
    """What holds for the chunk as a whole."""
    where = f"vectors of work item {chunk.work_item_id}"
    _same("unknown-engine", chunk.engine_id, stream.engine_id, where, advice=_VALIDATE)
    _same("request", chunk.request_id, request_id, where, advice=_ASK_AGAIN)
    _same("dtype", chunk.dtype, stream.dtype, where, advice=_EXTRACT_AGAIN)
    _same("dim", chunk.dim, stream.dim, where, advice=_EXTRACT_AGAIN)
    n, width = len(chunk.row_index), stream.dim * ITEM_SIZE[stream.dtype]
    for names, shape, kind in (
        (("row_index", "n_tokens", "gathered_position", "gathered_token_id"), (n,), np.int32),
        (("token_hash", "payload_xxh3"), (n, HASH_BYTES), np.uint8),
        (("payload",), (n, width), np.uint8),
    ):
        for name in names:
            array: np.ndarray = getattr(chunk, name)
            if array.shape != shape or array.dtype != kind:
                raise LineageError(
                    "shape",
                    seen=f"{name} of {where}: {array.dtype} {array.shape}",
                    expected=f"{np.dtype(kind)} {shape}",
                    advice=_EXTRACT_AGAIN,
                )


def _check_order(chunk: HiddenStates, item: WorkItemManifest, done: int) -> None:
    """Rows must go on where the last chunk ended, one by one."""
    index, n = chunk.row_index, len(chunk.row_index)
    should = np.arange(done, done + n)
    if n and done + n <= item.n_rows and np.array_equal(index, should):
        return
    if not n:
        clause, seen, expected = "missing-row", "no rows", done
    else:
        at = int(np.flatnonzero((index != should) | (index >= item.n_rows))[0])
        row, expected, seen = int(index[at]), done + at, f"row {index[at]}"
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


@dataclass(frozen=True)
class _Piece:
    """Rows of a chunk, and the stored rows at their places."""

    chunk: HiddenStates
    new: slice
    rows: WorkItemRows
    of: slice


def _cut(chunk: HiddenStates, rows: WorkItemRows, done: int) -> Iterator[_Piece]:
    """The chunk in pieces of about `BATCH_BYTES`, so that a batch stays far below what arrow offsets can address."""
    step = max(1, BATCH_BYTES // chunk.payload.shape[1])
    for start in range(0, len(chunk.row_index), step):
        stop = min(start + step, len(chunk.row_index))
        yield _Piece(chunk, slice(start, stop), rows, slice(done + start, done + stop))


def _batch(pieces: Sequence[_Piece], attested_by: str) -> pa.RecordBatch:
    """The pieces' rows, each checked against the stored one at its place, with what the store says of it."""

    def new(name: str) -> np.ndarray:
        arrays = [getattr(piece.chunk, name)[piece.new] for piece in pieces]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def stored(name: str) -> np.ndarray:
        return np.concatenate([getattr(piece.rows, name)[piece.of] for piece in pieces])

    def repeated(name: str) -> pa.Array:
        values = pa.array([getattr(piece.chunk, name) for piece in pieces])
        return values.take(pa.array(np.repeat(np.arange(len(pieces)), [p.of.stop - p.of.start for p in pieces])))

    probe_ids = pa.concat_arrays([piece.rows.probe_ids[piece.of] for piece in pieces])
    payload, payload_xxh3, n_tokens = new("payload"), new("payload_xxh3"), new("n_tokens")
    digests = b"".join(map(xxhash.xxh3_128_digest, payload))
    for clause, seen, expected in (
        ("token-hash", new("token_hash"), stored("token_hash")),
        ("n-tokens", n_tokens, stored("n_tokens")),
        ("gathered-position", new("gathered_position"), n_tokens - 1),
        ("gathered-token", new("gathered_token_id"), stored("last_token_ids")),
        ("payload-hash", np.frombuffer(digests, dtype=np.uint8).reshape(-1, HASH_BYTES), payload_xxh3),
    ):
        if not np.array_equal(seen, expected):
            at = int(np.flatnonzero((seen != expected).reshape(len(seen), -1).any(axis=1))[0])
            raise LineageError(
                clause,
                seen=f"{_shown(seen[at])} at row {new('row_index')[at]} of work item {repeated('work_item_id')[at]}, "
                f"probe {probe_ids[at].as_py()!r}",
                expected=_shown(expected[at]),
                advice=_EXTRACT_AGAIN,
            )
    columns = {name: repeated(name) for name in ("part", "work_item_id", "request_id", "engine_id", "dtype")}
    columns |= {name: pa.array(new(name)) for name in ("row_index", "gathered_position", "gathered_token_id")}
    columns |= {
        "attestation_id": pa.repeat(attested_by, len(payload)),
        "probe_id": probe_ids,
        "n_tokens": pa.array(n_tokens),
        "truncated": pa.array(stored("truncated")),
        "token_hash": fixed_binary(new("token_hash")),
        "dim": pa.array(np.full(len(payload), pieces[0].chunk.dim, dtype=np.int32)),
        "payload_xxh3": fixed_binary(payload_xxh3),
        "payload": fixed_binary(payload),
    }
    return pa.RecordBatch.from_arrays([columns[f.name] for f in HIDDEN_STATES.schema], schema=HIDDEN_STATES.schema)


def _same(clause: str, seen: object, expected: object, where: str, *, advice: str) -> None:
    if seen != expected:
        raise LineageError(clause, seen=f"{seen} ({where})", expected=expected, advice=advice)


def _shown(value: np.ndarray | np.integer) -> str:
    return value.tobytes().hex() if isinstance(value, np.ndarray) else str(value)
