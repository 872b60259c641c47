"""Jobs: what the command line runs, and what a person starts from the UI for a range of shards."""

import dagster as dg

from fabric_assets.defs.partitions import probe_shards

build_engine_job = dg.define_asset_job(
    "build_engine",
    selection=dg.AssetSelection.assets("engine", "engine_validation_report"),
    description="Builds the engine and proves it.",
)

extract_job = dg.define_asset_job(
    "extract",
    selection=dg.AssetSelection.assets(
        "probe_sets", "tokenised_batches", "work_items", "extraction_requests", "hidden_states"
    ),
    partitions_def=probe_shards,
    description="Probe files in, vectors out, for one shard or a range, with the newest engine.",
)
