"""Spooled rows -> the same rows in packing order, sorted on disk."""

from __future__ import annotations

from pathlib import Path

import duckdb

_SORT_MEMORY = "256MB"
_SORT_THREADS = 2

_SORT = """
    COPY (SELECT * FROM read_parquet($spool) ORDER BY n_tokens, token_hash, probe_id)
    TO $target (FORMAT parquet, COMPRESSION lz4_raw, ROW_GROUP_SIZE 8192)
"""


def sort_spool(spool: Path, target: Path, spill: Path) -> None:
    """Writes the rows of `spool` to `target` by length, token hash and probe id; removes `spool`."""
    with duckdb.connect() as database:
        database.execute(f"SET memory_limit = '{_SORT_MEMORY}'")
        database.execute(f"SET threads = {_SORT_THREADS}")
        database.execute("SET temp_directory = $1", [str(spill)])
        database.execute(_SORT, {"spool": str(spool), "target": str(target)})
    spool.unlink()
