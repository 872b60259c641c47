"""Sorted rows -> work items: which rows are one packed batch, which of them share a sequence, and their manifest.

Contract: works block by block. A block ends after MAX_BLOCK_ROWS rows or MAX_BLOCK_TOKENS tokens, before the sequence
that would pass that, unless that sequence fills the block by itself. No work item crosses a block's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from resources.errors import FabricError
from resources.packing import plan
from resources.records import Limits, WorkItemManifest, work_item_digest
from resources.work_items.rows import ROWS, TOKENISED, hash_matrix, id_lists

MAX_BLOCK_ROWS = 65_536
MAX_BLOCK_TOKENS = 4 << 20


def cut_work_items(
    part: str, ordered: Iterable[pa.RecordBatch], target: Path, tokenizer_id: str, probes_digest: bytes, limits: Limits
) -> list[WorkItemManifest]:
    """Writes the sorted rows with their places; gives back the manifest."""
    manifest: list[WorkItemManifest] = []
    with pq.ParquetWriter(target, ROWS, compression="lz4", use_dictionary=["part", "work_item_id"]) as writer:
        for block in _blocks(ordered):
            rows = _placed(part, block, len(manifest), limits)
            writer.write_batch(rows)
            manifest += _manifest(part, rows, tokenizer_id, probes_digest)
    return manifest


def sequence_starts(n_tokens: np.ndarray, hashes: np.ndarray, flat_ids: np.ndarray) -> np.ndarray:
    """The row at which each distinct token sequence begins, int64; equal sequences must be adjacent.

    `n_tokens` int [n], `hashes` uint8 [n, 16], `flat_ids` the rows' ids end to end. Rows with one hash must have the
    same ids, and are compared: two sequences under one hash are an error.
    """
    repeats = np.zeros(len(n_tokens), dtype=bool)
    repeats[1:] = (hashes[1:] == hashes[:-1]).all(axis=1)
    before = np.roll(n_tokens, 1)
    positions = np.flatnonzero(np.repeat(repeats, n_tokens))
    back = np.repeat(n_tokens, n_tokens)[positions]
    if (n_tokens != before)[repeats].any() or (flat_ids[positions] != flat_ids[positions - back]).any():
        raise FabricError(
            "two different token sequences have one hash (xxh3-128), so that their rows can't be told apart; expected "
            "a hash for each; take one of the two probes out and report this"
        )
    return np.flatnonzero(~repeats)


def _blocks(ordered: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The sorted rows in blocks that no sequence crosses, if it fits into one."""
    held = TOKENISED.empty_table()
    for batch in ordered:
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        while (most := _rows_within(held)) < held.num_rows:
            end = _sequence_start(held, most) or most
            yield held.slice(0, end).combine_chunks().to_batches()[0]
            held = held.slice(end)
    if held.num_rows:
        yield held.combine_chunks().to_batches()[0]


def _rows_within(rows: pa.Table) -> int:
    """How many of the first rows a block may hold; at least 1."""
    tokens = np.cumsum(rows.column("n_tokens").to_numpy(), dtype=np.int64)
    return max(1, min(MAX_BLOCK_ROWS, int(np.searchsorted(tokens, MAX_BLOCK_TOKENS, side="right"))))


def _sequence_start(rows: pa.Table, row: int) -> int:
    """The first row whose token sequence is the same as that of `row`."""
    hashes = hash_matrix(rows.column("token_hash").slice(0, row + 1).combine_chunks())
    others = np.flatnonzero((hashes != hashes[row]).any(axis=1))
    return int(others[-1]) + 1 if len(others) else 0


def _placed(part: str, block: pa.RecordBatch, first_item: int, limits: Limits) -> pa.RecordBatch:
    """A block's rows with their places in work items, which are numbered from `first_item`."""
    n_tokens = block.column("n_tokens").to_numpy()
    flat_ids = block.column("token_ids").flatten()
    starts = sequence_starts(n_tokens, hash_matrix(block.column("token_hash")), flat_ids.to_numpy())
    item_sequences = np.array([r.start for r in plan(n_tokens[starts].tolist(), limits)])
    item_rows = np.diff(np.append(starts[item_sequences], len(n_tokens)))
    names = [f"{part}-{index:08d}" for index in range(first_item, first_item + len(item_sequences))]
    item_of_row = np.repeat(np.arange(len(names)), item_rows)
    sequence_of_row = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(n_tokens))))
    columns = {name: block.column(name) for name in ("probe_id", "n_tokens", "truncated", "token_hash")} | {
        "part": pa.repeat(part, len(n_tokens)),
        "work_item_id": pa.array(names).take(pa.array(item_of_row)),
        "row_index": pa.array(np.arange(len(n_tokens)) - starts[item_sequences][item_of_row], pa.int32()),
        "sequence_index": pa.array(sequence_of_row - item_sequences[item_of_row], pa.int32()),
        "token_ids": id_lists(flat_ids, n_tokens),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in ROWS.names], schema=ROWS)


def _manifest(part: str, rows: pa.RecordBatch, tokenizer_id: str, probes_digest: bytes) -> Iterator[WorkItemManifest]:
    row_index, sequence_index, n_tokens = (
        rows.column(name).to_numpy() for name in ("row_index", "sequence_index", "n_tokens")
    )
    begins_sequence = np.append(True, np.diff(sequence_index) != 0) | (row_index == 0)
    starts = np.flatnonzero(row_index == 0)
    tokens = np.add.reduceat(np.where(begins_sequence, n_tokens, 0), starts, dtype=np.int64)
    longest = np.maximum.reduceat(n_tokens, starts)
    names, probe_ids, hashes = (rows.column(name).to_pylist() for name in ("work_item_id", "probe_id", "token_hash"))
    places, cut = sequence_index.tolist(), rows.column("truncated").to_pylist()
    ends = np.append(starts[1:], rows.num_rows)
    for i, (first, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        yield WorkItemManifest(
            part=part,
            work_item_id=names[first],
            n_rows=end - first,
            n_sequences=places[end - 1] + 1,
            n_tokens=int(tokens[i]),
            max_tokens=int(longest[i]),
            digest=work_item_digest(probe_ids[first:end], hashes[first:end], places[first:end], cut[first:end]),
            tokenizer_id=tokenizer_id,
            probes_digest=probes_digest,
        )
