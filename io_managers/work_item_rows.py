"""Stored tokenised rows -> whole work items, one at a time, their order verified.

Contract: rows of a partition come work item by work item, ids ascending, `row_index` 0 .. n - 1 within each; equal
token sequences are neighbours with one `sequence_index`. Anything else is a `StoreError`. Memory is one work item and
one row group. Columns stay arrow and numpy; `WorkItemRows.work_item` makes the record that an extraction reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from io_managers.delta_table import StoreError
from resources.records import WorkItem

HASH_BYTES = 16


@dataclass(frozen=True)
class WorkItemRows:
    """The n rows of one work item as stored; the lineage check and `work_item` read the same ones."""

    part: str
    work_item_id: str
    probe_ids: pa.StringArray
    sequence_index: np.ndarray
    """int32 [n]."""
    n_tokens: np.ndarray
    """int32 [n]."""
    truncated: np.ndarray
    """bool [n]."""
    token_hash: np.ndarray
    """uint8 [n, 16]."""
    token_ids: np.ndarray
    """int32 [sum of n_tokens], the rows' tokens laid end to end."""
    token_ends: np.ndarray
    """int64 [n], where each row's tokens end in `token_ids`."""

    @property
    def last_token_ids(self) -> np.ndarray:
        """int32 [n], the last token of each row."""
        return self.token_ids[self.token_ends - 1]

    def digest(self) -> bytes:
        """`records.work_item_digest` of the rows, in one pass over arrow buffers."""
        names = self.probe_ids.cast(pa.binary())
        header = np.empty((len(names), 2), dtype="<u4")
        header[:, 0] = pc.binary_length(names).to_numpy(zero_copy_only=False)
        header[:, 1] = self.sequence_index
        fields = pc.binary_join_element_wise(fixed_binary(header), names, fixed_binary(self.token_hash), b"")
        offsets = np.frombuffer(fields.buffers()[1], dtype="<i4")
        start, stop = offsets[fields.offset], offsets[fields.offset + len(fields)]
        return xxhash.xxh3_128_digest(memoryview(fields.buffers()[2])[start:stop])

    def work_item(self) -> WorkItem:
        """The record that an extraction reads: each distinct sequence once."""
        first = np.flatnonzero(np.diff(self.sequence_index, prepend=-1))
        ends = self.token_ends[first]
        starts = ends - self.n_tokens[first]
        return WorkItem(
            part=self.part,
            work_item_id=self.work_item_id,
            probe_ids=tuple(self.probe_ids.to_pylist()),
            sequence_index=self.sequence_index,
            sequences=tuple(self.token_ids[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)),
            token_hashes=self.token_hash[first],
            truncated=self.truncated,
        )


def work_item_rows(part: str, batches: Iterable[pa.RecordBatch]) -> Iterator[WorkItemRows]:
    """Cuts a partition's tokenised rows, in the order of storage, into work items."""
    held: list[pa.RecordBatch] = []
    previous = ""
    for batch in batches:
        ids = batch["work_item_id"]
        changes = np.flatnonzero(pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)) + 1
        for start, stop in pairwise([0, *changes.tolist(), len(ids)]):
            name = ids[start].as_py()
            if held and name != previous:
                yield _rows(part, previous, held)
                held = []
            if not held and name <= previous:
                raise StoreError(
                    f"partition {part} of tokenised_batches has work item {name} after {previous}; expected ascending "
                    "ids, each in one piece; materialise tokenised_batches for it again"
                )
            previous = name
            held.append(batch.slice(start, stop - start))
    if held:
        yield _rows(part, previous, held)


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


def _rows(part: str, name: str, pieces: list[pa.RecordBatch]) -> WorkItemRows:
    rows = pieces[0] if len(pieces) == 1 else pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]

    def integers(column: str) -> np.ndarray:
        return rows[column].to_numpy(zero_copy_only=False)

    def wrong(what: str) -> NoReturn:
        raise StoreError(
            f"work item {name} of partition {part} in tokenised_batches {what}; materialise tokenised_batches again"
        )

    if not np.array_equal(integers("row_index"), np.arange(len(rows))):
        wrong(f"has row indices other than 0 .. {len(rows) - 1} in order")
    tokens = rows["token_ids"]
    lengths = np.diff(tokens.offsets.to_numpy())
    n_tokens, sequence_index = integers("n_tokens"), integers("sequence_index")
    if lengths.min() < 1 or not np.array_equal(lengths, n_tokens):
        wrong("has rows whose token_ids are not n_tokens long")
    step = np.diff(sequence_index)
    if sequence_index[0] != 0 or not ((step == 0) | (step == 1)).all():
        wrong("has sequence indices that do not count up from 0")
    token_hash = binary_rows(rows["token_hash"], HASH_BYTES)
    same = step == 0
    if not np.array_equal(token_hash[1:][same], token_hash[:-1][same]):
        wrong("has rows of one sequence with different token hashes")
    return WorkItemRows(
        part=part,
        work_item_id=name,
        probe_ids=rows["probe_id"],
        sequence_index=sequence_index,
        n_tokens=n_tokens,
        truncated=rows["truncated"].to_numpy(zero_copy_only=False),
        token_hash=token_hash,
        token_ids=tokens.flatten().to_numpy(),
        token_ends=np.cumsum(lengths, dtype=np.int64),
    )
