"""The check that says when vectors are of probes that were stored anew since."""

import dagster as dg

from fabric_assets.defs.hidden_states import hidden_states
from fabric_assets.defs.partitions import probe_shards
from fabric_assets.defs.probe_sets import probe_sets
from io_managers import layout
from io_managers.reading import stale_partitions
from io_managers.stored_rows import stored_models

SHOWN = 50


# It waits for hidden_states, where a run has it: in between, vectors are stale for a moment in every run.
@dg.asset_check(asset=probe_sets, additional_deps=[hidden_states], partitions_def=probe_shards)
def vectors_current(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """The stored vectors are of the probes as they are now (a warning). SQL leaves out those that are not."""
    lake, parts = layout.lake_path(), set(context.partition_keys)
    stale = [
        {"part": part, "model_key": model_key}
        for model_key in stored_models(lake)
        for part in stale_partitions(lake, model_key)
        if part in parts
    ]
    shown = [dg.TableRecord(row) for row in stale[:SHOWN]]
    return dg.AssetCheckResult(
        passed=not stale,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{len(stale)} of the run's partitions have vectors of earlier probes; materialise hidden_states"
        if stale
        else None,
        metadata={"stale": len(stale)} | ({"stale_partitions": dg.MetadataValue.table(shown)} if shown else {}),
    )
