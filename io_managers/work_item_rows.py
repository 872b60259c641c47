"""Stored tokenised rows -> whole work items, one at a time, their order verified.

Contract: rows of a partition come work item by work item, ids ascending, `row_index` 0 .. n - 1 within each; equal
token sequences are neighbours with one `sequence_index`. Anything else is a `StoreError`. Memory is one work item and
one row group. Columns stay arrow and numpy; `WorkItemRows.work_item` makes the record that an extraction reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from io_managers.errors import StoreError
from resources.records import WorkItem

HASH_BYTES = 16


@dataclass(frozen=True)
class WorkItemRows:
    """The n rows of one work item as stored; the lineage check and `work_item` read the same ones."""

    part: str
    work_item_id: str
    digest: bytes
    """`records.work_item_digest` of the rows."""
    probe_ids: pa.StringArray
    sequence_index: np.ndarray
    """int32 [n]."""
    n_tokens: np.ndarray
    """int32 [n]."""
    truncated: np.ndarray
    """bool [n]."""
    token_hash: np.ndarray
    """uint8 [n, 16]."""
    last_token_ids: np.ndarray
    """int32 [n], the last token of each row."""
    token_ids: np.ndarray
    """int32 [sum of n_tokens], the rows' tokens laid end to end."""

    def work_item(self) -> WorkItem:
        """The record that an extraction reads: each distinct sequence once."""
        first = np.flatnonzero(np.diff(self.sequence_index, prepend=-1))
        ends = np.cumsum(self.n_tokens, dtype=np.int64)[first].tolist()
        lengths = self.n_tokens[first].tolist()
        return WorkItem(
            part=self.part,
            work_item_id=self.work_item_id,
            probe_ids=tuple(self.probe_ids.to_pylist()),
            sequence_index=self.sequence_index,
            sequences=tuple(self.token_ids[end - length : end] for end, length in zip(ends, lengths, strict=True)),
            token_hashes=self.token_hash[first],
            truncated=self.truncated,
        )


def work_item_rows(part: str, batches: Iterable[pa.RecordBatch]) -> Iterator[WorkItemRows]:
    """Cuts a partition's tokenised rows, in the order of storage, into work items."""
    held: list[pa.RecordBatch] = []
    previous = ""
    for batch in batches:
        starts = _starts(batch["work_item_id"])
        if held and batch["work_item_id"][0] == held[0]["work_item_id"][0]:
            starts = starts[1:]
        if len(starts):
            # The work item that starts last may go on in the next batch.
            for item in _items(part, [*held, batch.slice(0, starts[-1])], previous):
                previous = item.work_item_id
                yield item
            held = []
        held.append(batch.slice(starts[-1] if len(starts) else 0))
    yield from _items(part, held, previous)


def fixed_binary(rows: np.ndarray) -> pa.BinaryArray:
    """An array [n, w] of any dtype as n binary values of its row bytes, without a copy. Below 2 GiB in all."""
    rows = np.ascontiguousarray(rows)
    width = rows.itemsize * rows.shape[1]
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * width
    if offsets[-1] >= 2**31:
        raise StoreError(f"{len(rows)} values of {width} bytes are too many for one batch; expected less than 2 GiB")
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(rows.reshape(-1))]
    )


def binary_rows(column: pa.BinaryArray, width: int) -> np.ndarray:
    """n binary values of `width` bytes each as uint8 [n, width], without a copy; any other length is a `StoreError`."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    if not (np.diff(offsets) == width).all():
        seen = sorted({int(n) for n in np.diff(offsets) if n != width})[:3]
        raise StoreError(f"stored values have {seen} bytes; expected {width} each; materialise the partition again")
    if not len(column):
        return np.empty((0, width), dtype=np.uint8)
    data = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    return data[int(offsets[0]) : int(offsets[-1])].reshape(len(column), width)


def _starts(ids: pa.Array) -> np.ndarray:
    """Where each run of equal values starts."""
    changes = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(np.concatenate([[len(ids) > 0], changes]))


def _items(part: str, pieces: list[pa.RecordBatch], previous: str) -> Iterator[WorkItemRows]:
    """Whole work items; `previous` is the id of the one before them."""
    pieces = [piece for piece in pieces if piece.num_rows]
    if not pieces:
        return
    rows = pieces[0] if len(pieces) == 1 else pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
    starts = _starts(rows["work_item_id"])
    ends = np.append(starts[1:], rows.num_rows)
    names = rows["work_item_id"].take(pa.array(starts)).to_pylist()
    for name, before in zip(names, [previous, *names], strict=False):
        if name <= before:
            raise StoreError(
                f"partition {part} of tokenised_batches has work item {name} after {before}; expected ascending ids, "
                "each in one piece; materialise tokenised_batches for it again"
            )
    n_tokens, sequence_index = (rows[column].to_numpy() for column in ("n_tokens", "sequence_index"))
    truncated = rows["truncated"].to_numpy(zero_copy_only=False)
    token_hash = binary_rows(rows["token_hash"], HASH_BYTES)
    lengths = np.diff(rows["token_ids"].offsets.to_numpy())
    tokens = rows["token_ids"].flatten().to_numpy()
    _check_rows(part, rows, starts, ends, lengths, token_hash)

    token_ends = np.cumsum(lengths, dtype=np.int64)
    last_token_ids = tokens[token_ends - 1]
    digests = _digests(rows["probe_id"], sequence_index, truncated, token_hash, starts, ends)
    for name, digest, start, end in zip(names, digests, starts.tolist(), ends.tolist(), strict=True):
        token_start = token_ends[start] - lengths[start]
        yield WorkItemRows(
            part=part,
            work_item_id=name,
            digest=digest,
            probe_ids=rows["probe_id"].slice(start, end - start),
            sequence_index=sequence_index[start:end],
            n_tokens=n_tokens[start:end],
            truncated=truncated[start:end],
            token_hash=token_hash[start:end],
            last_token_ids=last_token_ids[start:end],
            token_ids=tokens[token_start : token_ends[end - 1]],
        )


def _check_rows(
    part: str, rows: pa.RecordBatch, starts: np.ndarray, ends: np.ndarray, lengths: np.ndarray, token_hash: np.ndarray
) -> None:
    row_index, n_tokens, sequence_index = (
        rows[column].to_numpy() for column in ("row_index", "n_tokens", "sequence_index")
    )
    step = np.diff(sequence_index, prepend=0)
    jumps = (step != 0) & (step != 1)
    jumps[starts] = sequence_index[starts] != 0
    same = step == 0
    same[starts] = False
    again = np.flatnonzero(same)
    unlike = np.zeros(rows.num_rows, dtype=bool)
    unlike[again] = (token_hash[again] != token_hash[again - 1]).any(axis=1)
    for wrong, what in (
        (row_index != np.arange(rows.num_rows) - np.repeat(starts, ends - starts), "row indices that do not count up"),
        ((lengths < 1) | (lengths != n_tokens), "token_ids that are not n_tokens long"),
        (jumps, "sequence indices that do not count up"),
        (unlike, "rows of one sequence with different token hashes"),
    ):
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise StoreError(
                f"work item {rows['work_item_id'][at]} of partition {part} in tokenised_batches has {what}, first at "
                f"its row {row_index[at]}; expected none; materialise tokenised_batches again"
            )


def _digests(
    probe_ids: pa.StringArray,
    sequence_index: np.ndarray,
    truncated: np.ndarray,
    token_hash: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
) -> list[bytes]:
    """`records.work_item_digest` of each range of rows, in one pass over arrow buffers."""
    names = probe_ids.cast(pa.binary())
    header = np.empty((len(names), 3), dtype="<u4")
    header[:, 0] = pc.binary_length(names).to_numpy()
    header[:, 1] = sequence_index
    header[:, 2] = truncated
    fields = pc.binary_join_element_wise(fixed_binary(header), names, fixed_binary(token_hash), b"")
    offsets = np.frombuffer(fields.buffers()[1], dtype=np.int32)[fields.offset :]
    data = memoryview(fields.buffers()[2])
    return [
        xxhash.xxh3_128_digest(data[offsets[start] : offsets[end]]) for start, end in zip(starts, ends, strict=True)
    ]
