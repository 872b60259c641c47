"""Probes -> their tokens, and the refusals of those that have no place in the work.

Contract: works through a bounded number of rows and bytes at a time, whatever batches come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from resources.checkpoint import chat_template
from resources.checkpoint.chat_template import Unencodable
from resources.external_sort import ExternalSort
from resources.records import Limits, Message, Refusal, token_hash
from resources.work_items.rows import TOKENISED, id_lists

STAGE = "tokenised_batches"

REASONS = {
    "over-long": "the probe has more tokens than the policy or a packed batch takes",
    "no-tokens": "the text gives no token",
    "token-id-out-of-range": "a token id is not in the vocabulary",
    **chat_template.REASONS,
}
"""Every reason for which a probe is refused here."""

_ROWS_AT_ONCE = 1024
_BYTES_AT_ONCE = 4 << 20


class Encoder(Protocol):
    """What is needed of a tokenizer; see `resources.checkpoint.tokenizer`."""

    tokenizer_id: str

    def encode_probes(self, probes: Sequence[str | Sequence[Message]]) -> list[np.ndarray | Unencodable]: ...

    def fit(self, ids: np.ndarray) -> tuple[np.ndarray | None, bool]: ...


class _Fault(NamedTuple):
    reason: str
    detail: str


class _Fitted(NamedTuple):
    ids: np.ndarray
    truncated: bool


def add_tokens(
    part: str,
    probes: Iterable[pa.RecordBatch],
    tokenizer: Encoder,
    limits: Limits,
    vocab_size: int,
    target: ExternalSort,
) -> list[Refusal]:
    """Adds the tokens of each probe that has a place in the work to `target`; gives back the others' refusals."""
    refusals: list[Refusal] = []
    longest = min(limits.max_input_len, limits.max_num_tokens)
    for batch in probes:
        for piece in _pieces(batch):
            names, kept = [], []
            rows = zip(
                piece.column("probe_id").to_pylist(),
                _token_ids(piece, tokenizer),
                piece.column("source_uri").to_pylist(),
                piece.column("source_row").to_pylist(),
                strict=True,
            )
            for probe_id, ids, uri, row in rows:
                fitted = _fitted(ids, tokenizer, longest, vocab_size)
                if isinstance(fitted, _Fault):
                    refusals.append(Refusal(part, STAGE, probe_id, fitted.reason, fitted.detail, uri, row))
                else:
                    names.append(probe_id)
                    kept.append(fitted)
            if names:
                target.add(_batch(names, kept))
    return refusals


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices with a bounded number of rows and bytes, since a tokenizer's working memory goes with both."""
    first = held = 0
    for row, size in enumerate(_sizes(batch)):
        if row > first and (row - first == _ROWS_AT_ONCE or held + size > _BYTES_AT_ONCE):
            yield batch.slice(first, row - first)
            first, held = row, 0
        held += size
    if first < batch.num_rows:
        yield batch.slice(first)


def _sizes(batch: pa.RecordBatch) -> list[int]:
    """Of each row: bytes of its text or chat, or its number of given ids."""
    text, ids = pc.binary_length(batch.column("text")), pc.list_value_length(batch.column("token_ids"))
    sizes = pc.add(pc.fill_null(text, 0), pc.fill_null(ids, 0)).to_numpy(zero_copy_only=False).astype(np.int64)
    chats = batch.column("messages")
    if chats.null_count < len(chats):
        contents = pc.fill_null(pc.binary_length(pc.struct_field(chats.flatten(), "content")), 0)
        np.add.at(sizes, pc.list_parent_indices(chats).to_numpy(), contents.to_numpy(zero_copy_only=False))
    return sizes.tolist()


def _token_ids(piece: pa.RecordBatch, tokenizer: Encoder) -> list[np.ndarray | Unencodable]:
    texts, chats, given = (piece.column(name).to_pylist() for name in ("text", "messages", "token_ids"))
    probes = [
        text if chat is None else tuple(Message(**message) for message in chat)
        for text, chat in zip(texts, chats, strict=True)
    ]
    encoded = iter(tokenizer.encode_probes([probe for probe in probes if probe is not None]))
    return [
        np.array(ids, dtype=np.int32) if probe is None else next(encoded)
        for probe, ids in zip(probes, given, strict=True)
    ]


def _fitted(ids: np.ndarray | Unencodable, tokenizer: Encoder, longest: int, vocab_size: int) -> _Fitted | _Fault:
    if isinstance(ids, Unencodable):
        return _Fault(*ids)
    if len(ids) == 0:
        return _Fault("no-tokens", "the probe has no token")
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if len(outside):
        return _Fault("token-id-out-of-range", f"token id {outside[0]} is not in 0 .. {vocab_size - 1}")
    fitted, truncated = tokenizer.fit(ids)
    if fitted is None:
        return _Fault("over-long", f"the probe has {len(ids):,} tokens, more than the tokenizer's policy takes")
    if len(fitted) > longest:
        return _Fault("over-long", f"the probe has {len(fitted):,} tokens; a packed batch takes at most {longest:,}")
    return _Fitted(fitted, truncated)


def _batch(names: list[str], rows: list[_Fitted]) -> pa.RecordBatch:
    lengths = np.array([len(row.ids) for row in rows], dtype=np.int32)
    columns = {
        "n_tokens": pa.array(lengths),
        "token_hash": pa.array([token_hash(row.ids) for row in rows], pa.binary()),
        "probe_id": pa.array(names, pa.string()),
        "truncated": pa.array([row.truncated for row in rows]),
        "token_ids": id_lists(pa.array(np.concatenate([row.ids for row in rows]), pa.int32()), lengths),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in TOKENISED.names], schema=TOKENISED)
