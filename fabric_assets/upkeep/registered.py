"""The probe sets that are registered in the home: their shards, and what each shard's content is. No Dagster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from io_managers import layout
from resources.probe_files import ProbeSet, Shard, load_probe_set, shard_of
from resources.probe_files.identity import shard_identity


def registered_shard(part: str) -> tuple[ProbeSet, Shard]:
    """The probe set and shard of a partition key, as `probe_files.shard_of`; an index is read once while it stays."""
    name = part.rpartition(".")[0]
    index = layout.probes_path() / f"{name}.json"
    if index.is_file():
        probe_set, shards = _shards(layout.probes_path(), name, index.stat().st_mtime_ns)
        if part in shards:
            return probe_set, shards[part]
    return shard_of(layout.probes_path(), part)


def registered_identities() -> Mapping[str, bytes]:
    """Of every registered shard, by partition key: the digest that decides its rows."""
    return {
        part: shard_identity(probe_set, shard)
        for index in sorted(layout.probes_path().glob("*.json"))
        for probe_set, shards in [_shards(layout.probes_path(), index.stem, index.stat().st_mtime_ns)]
        for part, shard in shards.items()
    }


@lru_cache(maxsize=16)
def _shards(folder: Path, name: str, mtime_ns: int) -> tuple[ProbeSet, Mapping[str, Shard]]:
    probe_set = load_probe_set(folder, name)
    return probe_set, {shard.part: shard for shard in probe_set.shards}
