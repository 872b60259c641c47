"""Probe sets to Dagster partitions: shards added, shards that are gone withdrawn from the lake and accounted for."""

from __future__ import annotations

import dagster as dg

from fabric_assets.partitions import probe_shards
from io_managers import layout
from io_managers.removal import Withdrawn, remove_partition
from resources.errors import ConfigurationError
from resources.probe_files import ProbeSet

_SHARDS = str(probe_shards.name)


def add_partitions(instance: dg.DagsterInstance, probe_set: ProbeSet) -> list[Withdrawn]:
    """Adds a registered set's shards, and takes those that it no longer has out of the lake."""
    parts = [shard.part for shard in probe_set.shards]
    instance.add_dynamic_partitions(_SHARDS, parts)
    kept = set(parts)
    return [_withdraw(instance, part) for part in _parts_of(instance, probe_set.name) if part not in kept]


def withdraw_probe_set(instance: dg.DagsterInstance, name: str) -> list[Withdrawn]:
    """Takes a set out: its vectors and everything they were made of, its partitions, its index. Its files stay."""
    parts = _parts_of(instance, name)
    index = layout.probes_path() / f"{name}.json"
    if not parts and not index.exists():
        known = sorted(p.stem for p in layout.probes_path().glob("*.json"))
        raise ConfigurationError(
            f"no probe set {name!r} is registered; registered: {', '.join(known) or 'none'}; name one of them"
        )
    gone = [_withdraw(instance, part) for part in parts]
    index.unlink(missing_ok=True)
    return gone


def sentence(gone: Withdrawn) -> str:
    """What was withdrawn, for a person."""
    return (
        f"{gone.part} was withdrawn: {gone.vectors:,} vectors of {gone.probes:,} probes removed, "
        f"{gone.rows:,} rows of the lake in all"
    )


def _parts_of(instance: dg.DagsterInstance, name: str) -> list[str]:
    return [part for part in instance.get_dynamic_partitions(_SHARDS) if part.rpartition(".")[0] == name]


def _withdraw(instance: dg.DagsterInstance, part: str) -> Withdrawn:
    gone = remove_partition(layout.lake_path(), part)
    for asset, rows in (("probe_sets", gone.probes), ("hidden_states", gone.vectors)):
        event = dg.AssetObservation(
            asset_key=asset,
            partition=part,
            description=sentence(gone),
            metadata={"withdrawn": rows, "dagster/partition_row_count": 0},
        )
        instance.report_runless_asset_event(event)
    instance.delete_dynamic_partition(_SHARDS, part)
    return gone
