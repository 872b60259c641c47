"""Reads a stored partition back and says whether it adds up. No Dagster; nothing is written.

Contract: memory is bounded by one row group and DuckDB's `MEMORY_LIMIT`, whatever the partition's size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import xxhash

from io_managers.stored_rows import partition_files
from io_managers.tables import HIDDEN_STATES, REFUSED_PROBES

ROWS_A_BATCH = 1024
MEMORY_LIMIT = "512MB"


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


def account(lake: Path, part: str, *, model_key: str, rows_in: int) -> Account:
    """Counts a partition's vectors and refusals."""
    stored = distinct = 0
    refused: dict[tuple[str, str], int] = {}
    with _bounded_duckdb() as connection:
        if files := partition_files(lake, HIDDEN_STATES, part, model_key=model_key):
            [(stored, distinct)] = connection.execute(
                "SELECT count(*), count(DISTINCT probe_id) FROM read_parquet(?, hive_partitioning=false)", [files]
            ).fetchall()
        if files := partition_files(lake, REFUSED_PROBES, part):
            rows = connection.execute(
                # The partition columns are in the files' paths only.
                "SELECT stage, reason, count(*) FROM read_parquet(?, hive_partitioning=true, "
                "hive_types={'part': VARCHAR, 'stage': VARCHAR}) GROUP BY ALL ORDER BY ALL",
                [files],
            ).fetchall()
            refused = {(stage, reason): n for stage, reason, n in rows}
    return Account(part=part, rows_in=rows_in, stored=stored, distinct=distinct, refused=refused)


def scan_vectors(lake: Path, part: str, *, model_key: str) -> VectorScan:
    """Hashes and tests every stored payload of a partition, and looks for token sequences that share a vector."""
    files = partition_files(lake, HIDDEN_STATES, part, model_key=model_key)
    rows = non_finite = damaged = 0
    example = ""
    for file in files:
        with pq.ParquetFile(file, pre_buffer=False) as parquet:
            columns = ["probe_id", "dtype", "payload_xxh3", "payload"]
            for batch in parquet.iter_batches(batch_size=ROWS_A_BATCH, columns=columns):
                rows += len(batch)
                probe_ids, dtypes, hashes, payloads = (batch.column(name).to_pylist() for name in columns)
                for probe_id, dtype, stored_hash, payload in zip(probe_ids, dtypes, hashes, payloads, strict=True):
                    if xxhash.xxh3_128_digest(payload) != stored_hash:
                        damaged += 1
                        example = example or f"{probe_id} is damaged"
                    if not _is_finite(payload, dtype):
                        non_finite += 1
                        example = example or f"{probe_id} is not finite"
    shared, pair = _shared_vectors(files)
    return VectorScan(
        part=part, rows=rows, non_finite=non_finite, damaged=damaged, shared_vectors=shared, example=example or pair
    )


def _bounded_duckdb() -> duckdb.DuckDBPyConnection:
    """A connection that spills to the temporary folder instead of growing with the partition."""
    return duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "temp_directory": tempfile.gettempdir()})


def _is_finite(payload: bytes, dtype: str) -> bool:
    if dtype == "bfloat16":
        return bool(((np.frombuffer(payload, dtype="<u2") & 0x7F80) != 0x7F80).all())
    return bool(np.isfinite(np.frombuffer(payload, dtype=np.dtype(dtype).newbyteorder("<"))).all())


def _shared_vectors(files: list[str]) -> tuple[int, str]:
    if not files:
        return 0, ""
    with _bounded_duckdb() as connection:
        rows = connection.execute(
            "SELECT count(*) OVER (), min(probe_id), max(probe_id) FROM read_parquet(?, hive_partitioning=false) "
            "GROUP BY payload_xxh3 HAVING count(DISTINCT token_hash) > 1 ORDER BY 2 LIMIT 1",
            [files],
        ).fetchall()
    return (rows[0][0], f"{rows[0][1]} and {rows[0][2]} share a vector") if rows else (0, "")
