"""Reads a stored partition back and says whether it adds up. No Dagster; nothing is written.

Contract: memory is one row group and a few hashes of 8 bytes a row, whatever the vectors' width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from io_managers.stored_ids import value_hashes
from io_managers.stored_rows import stored_batches
from io_managers.tables import HIDDEN_STATES, REFUSED_PROBES
from resources.records import payload_elements

ROWS_A_BATCH = 1024


@dataclass(frozen=True)
class Account:
    """Where the probes of a partition went. `rows_in` comes from the registered file, not from a stage's table."""

    part: str
    rows_in: int
    stored: int
    distinct: int
    """Different probe ids among the stored rows."""
    refused: Mapping[tuple[str, str], int]
    """Refusals by stage and reason."""

    @property
    def unaccounted(self) -> int:
        return self.rows_in - self.stored - sum(self.refused.values())

    @property
    def balanced(self) -> bool:
        return self.unaccounted == 0 and self.distinct == self.stored


@dataclass(frozen=True)
class VectorScan:
    """What reading every vector of a partition back showed."""

    part: str
    rows: int
    non_finite: int
    """Rows with an infinity or NaN."""
    damaged: int
    """Rows whose payload does not have the hash it was stored with."""
    shared_vectors: int
    """Vectors that more than one token sequence has."""
    example: str
    """Two probes that share a vector or one damaged or non-finite probe; empty where there is none."""


def account(lake: Path | str, part: str, *, model_key: str, rows_in: int) -> Account:
    """Counts a partition's vectors and refusals."""
    ids = _column(lake, part, model_key, "probe_id")
    refused: Counter[tuple[str, str]] = Counter()
    for batch in stored_batches(lake, REFUSED_PROBES, {"part": part}, columns=["stage", "reason"]):
        refused.update(zip(batch["stage"].to_pylist(), batch["reason"].to_pylist(), strict=True))
    hashes = np.concatenate([value_hashes(column) for column in ids] or [np.zeros(0, dtype=np.uint64)])
    # Equal hashes are few, and mostly equal ids; which of them are is settled by the ids themselves.
    doubtful = _repeated(hashes)
    apart = len(hashes) - int(np.isin(hashes, doubtful).sum())
    same = {
        probe_id
        for column in (_column(lake, part, model_key, "probe_id") if len(doubtful) else ())
        for probe_id in column.filter(pa.array(np.isin(value_hashes(column), doubtful))).to_pylist()
    }
    return Account(part=part, rows_in=rows_in, stored=len(hashes), distinct=apart + len(same), refused=dict(refused))


def scan_vectors(lake: Path | str, part: str, *, model_key: str) -> VectorScan:
    """Hashes and tests every stored payload of a partition, and looks for token sequences that share a vector."""
    rows = non_finite = damaged = 0
    example = ""
    columns = ["probe_id", "dtype", "payload_xxh3", "payload"]
    firsts = []
    for batch in _batches(lake, part, model_key, columns):
        rows += len(batch)
        firsts.append(value_hashes(batch["payload_xxh3"]))
        probe_ids, dtypes, hashes, payloads = (batch.column(name).to_pylist() for name in columns)
        for probe_id, dtype, stored_hash, payload in zip(probe_ids, dtypes, hashes, payloads, strict=True):
            if xxhash.xxh3_128_digest(payload) != stored_hash:
                damaged += 1
                example = example or f"{probe_id} is damaged"
            if not _is_finite(payload, dtype):
                non_finite += 1
                example = example or f"{probe_id} is not finite"
    repeated = _repeated(np.concatenate(firsts)) if firsts else np.zeros(0, dtype=np.uint64)
    shared, pair = _shared_vectors(lake, part, model_key, repeated)
    return VectorScan(
        part=part, rows=rows, non_finite=non_finite, damaged=damaged, shared_vectors=shared, example=example or pair
    )


def _is_finite(payload: bytes, dtype: str) -> bool:
    return bool(np.isfinite(payload_elements(np.frombuffer(payload, dtype=np.uint8), dtype)).all())


def _shared_vectors(lake: Path | str, part: str, model_key: str, repeated: np.ndarray) -> tuple[int, str]:
    """How many vectors belong to different token sequences, and two probes of one; `repeated` are hashes to look at."""
    names = ["payload_xxh3", "token_hash", "probe_id"]

    def chosen(wanted: np.ndarray) -> Iterator[pa.RecordBatch]:
        for batch in _batches(lake, part, model_key, names) if len(wanted) else ():
            yield batch.filter(pa.array(np.isin(value_hashes(batch["payload_xxh3"]), wanted)))

    pairs = [(value_hashes(batch["payload_xxh3"]), value_hashes(batch["token_hash"])) for batch in chosen(repeated)]
    payloads, tokens = (np.concatenate(side) for side in zip(*pairs, strict=True)) if pairs else (repeated, repeated)
    order = np.lexsort((tokens, payloads))
    payloads, tokens = payloads[order], tokens[order]
    doubtful = np.unique(payloads[1:][(payloads[1:] == payloads[:-1]) & (tokens[1:] != tokens[:-1])])
    sequences: dict[bytes, dict[bytes, str]] = {}
    for batch in chosen(doubtful):
        for payload, sequence, probe_id in zip(*(batch[name].to_pylist() for name in names), strict=True):
            sequences.setdefault(payload, {}).setdefault(sequence, probe_id)
    shared = [list(probes.values()) for probes in sequences.values() if len(probes) > 1]
    return len(shared), f"{shared[0][0]} and {shared[0][1]} share a vector" if shared else ""


def _batches(lake: Path | str, part: str, model_key: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    return stored_batches(lake, HIDDEN_STATES, {"part": part}, model_key=model_key, columns=columns, rows=ROWS_A_BATCH)


def _column(lake: Path | str, part: str, model_key: str, name: str) -> Iterator[pa.Array]:
    return (batch[name] for batch in _batches(lake, part, model_key, [name]))


def _repeated(hashes: np.ndarray) -> np.ndarray:
    """The hashes that occur more than once, sorted."""
    ordered = np.sort(hashes)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
