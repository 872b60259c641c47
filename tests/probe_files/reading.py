"""Registers a file and reads every shard of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from resources.probe_files import ProbeFormat, load_probe_set, read_shard, register
from resources.records import Probe, Refusal


def read_all(path: Path, *, shard_rows: int = 10_000, **format: Any) -> list[Probe | Refusal]:
    """The probes and refusals of `path`, through an index that was saved and loaded."""
    folder = path.parent / ".registered"
    name = register(path, format=ProbeFormat(**format), folder=folder, shard_rows=shard_rows).name
    probe_set = load_probe_set(folder, name)
    return [row for shard in probe_set.shards for row in read_shard(probe_set, shard)]


def outcomes(rows: list[Probe | Refusal]) -> list[tuple[str, str]]:
    """(probe id, the text or the reason) of each row."""
    return [(row.probe_id, row.reason if isinstance(row, Refusal) else str(row.text)) for row in rows]
