"""Takes a partition out of every table that has rows of it. No Dagster.

Contract: each table's rows go in a commit of their own, by the write protocol, what was made before what it was made
of: a removal that is interrupted leaves no vector without its work item, and is finished by being called again. The
files stay until the table is vacuumed, as those of any replaced partition do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from io_managers.delta_table import PartitionWrite, write_partition
from io_managers.stored_rows import data_files, stored_models
from io_managers.tables import ALL, TableSpec
from resources.records import digest


def remove_partition(lake: Path | str, part: str) -> int:
    """Replaces `part` by no rows in every table and every model's vectors; returns how many rows there were.

    For probes that were withdrawn, and shards that a set no longer has. Raises `StoreError`.
    """
    removed = 0
    for spec, model_key in _tables_by_part(lake):
        files = data_files(lake, spec, {"part": part}, model_key=model_key)
        for folder in sorted({file.path.rpartition("/")[0] for file in files}):
            scope = dict(step.split("=", 1) for step in folder.split("/"))
            nothing = PartitionWrite(scope, digest([]), 0, lambda: iter([]), {"removed": part})
            write_partition(lake, spec, nothing, model_key=model_key)
        removed += sum(file.rows for file in files)
    return removed


def _tables_by_part(lake: Path | str) -> Iterator[tuple[TableSpec, str | None]]:
    """The tables that are partitioned by `part`, last stage first, and the model of each table of vectors."""
    for spec in reversed(ALL):
        if "part" in spec.replaces:
            for model_key in stored_models(lake) if spec.per_model else (None,):
                yield spec, model_key
