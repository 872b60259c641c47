"""Takes a partition out of every table that has something of it. No Dagster.

Contract: each table's rows go in a commit of their own, by the write protocol, what was made before what it was made
of: a removal that is interrupted leaves no vector without its work item, and is finished by being called again. What
stays is that the partition was withdrawn, so that no later stage takes it for one without probes. The files stay until
the table is vacuumed, as those of any replaced partition do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from io_managers.contents import WITHDRAWN, stored_content
from io_managers.delta_table import PartitionWrite, write_partition
from io_managers.stored_rows import data_files, stored_models
from io_managers.tables import ALL, HIDDEN_STATES, PROBE_SETS, TableSpec


@dataclass(frozen=True)
class Withdrawn:
    """What a removal took out."""

    part: str
    probes: int
    vectors: int
    """Of every model."""
    rows: int
    """Of every table."""


def remove_partition(lake: Path | str, part: str) -> Withdrawn:
    """Replaces `part` by no rows in every table and every model's vectors.

    For probes that were withdrawn, and shards that a set no longer has. Raises `StoreError`.
    """
    removed = dict.fromkeys((spec.name for spec in ALL), 0)
    for spec, model_key in _tables_by_part(lake):
        for scope, rows in _scopes(lake, spec, part, model_key):
            nothing = PartitionWrite(scope, WITHDRAWN, 0, lambda: iter([]), {"removed": part}, made_of=WITHDRAWN)
            write_partition(lake, spec, nothing, model_key=model_key)
            removed[spec.name] += rows
    return Withdrawn(part, removed[PROBE_SETS.name], removed[HIDDEN_STATES.name], sum(removed.values()))


def _scopes(
    lake: Path | str, spec: TableSpec, part: str, model_key: str | None
) -> Iterator[tuple[Mapping[str, str], int]]:
    """What to withdraw of a table, with its rows: a partition that was committed counts though it has none."""
    files = data_files(lake, spec, {"part": part}, model_key=model_key)
    if spec.replaces == ("part",):
        if files or stored_content(lake, spec, {"part": part}, model_key=model_key) is not None:
            yield {"part": part}, sum(file.rows for file in files)
        return
    for folder in sorted({file.path.rpartition("/")[0] for file in files}):
        rows = sum(file.rows for file in files if file.path.startswith(f"{folder}/"))
        yield dict(step.split("=", 1) for step in folder.split("/")), rows


def _tables_by_part(lake: Path | str) -> Iterator[tuple[TableSpec, str | None]]:
    """The tables that are partitioned by `part`, last stage first, and the model of each table of vectors."""
    for spec in reversed(ALL):
        if "part" in spec.replaces:
            for model_key in stored_models(lake) if spec.per_model else (None,):
                yield spec, model_key
