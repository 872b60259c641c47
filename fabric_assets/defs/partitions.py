"""The partitions of every partitioned asset: one shard of a probe set each, named `<set>.<number>`."""

import dagster as dg

probe_shards = dg.DynamicPartitionsDefinition(name="probe_shards")

BACKFILL = dg.BackfillPolicy.multi_run(max_partitions_per_run=20)
"""A range of shards is one run, so that the engine loads once for it."""
