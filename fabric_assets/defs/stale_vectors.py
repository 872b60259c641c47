"""The check that says when vectors are of probes that were stored anew since."""

from collections.abc import Iterator

import dagster as dg

from fabric_assets.defs.hidden_states import hidden_states
from fabric_assets.defs.probe_sets import probe_sets
from fabric_assets.partitions import probe_shards
from fabric_assets.reports.check_results import Outcome, evaluations
from io_managers import layout
from io_managers.reading import stale_partitions
from io_managers.stored_rows import stored_models

# It waits for hidden_states, where a run has it: in between, vectors are stale for a moment in every run.
VECTORS_CURRENT = dg.AssetCheckSpec(
    "vectors_current",
    asset=probe_sets,
    additional_deps=[hidden_states],
    partitions_def=probe_shards,
    description="The stored vectors are of the probes as they are now (a warning). SQL leaves out those that are not.",
)


@dg.multi_asset_check(name="probe_sets_vectors_current", specs=[VECTORS_CURRENT])
def vectors_current(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
    """Looks at the vectors of every model."""
    lake = layout.lake_path()
    stale = {model_key: set(stale_partitions(lake, model_key)) for model_key in stored_models(lake)}
    outcomes = {part: _outcome([m for m, parts in stale.items() if part in parts]) for part in context.partition_keys}
    yield from evaluations(context.instance, VECTORS_CURRENT, outcomes, severity=dg.AssetCheckSeverity.WARN)


def _outcome(models: list[str]) -> Outcome:
    return Outcome(
        passed=not models,
        metadata={"stale": dg.MetadataValue.int(len(models)), "models": dg.MetadataValue.json(models)},
        description="it has vectors of earlier probes; materialise hidden_states" if models else None,
    )
