"""The partitions of every partitioned asset: one shard of a probe set each, named `<set>.<number>`."""

import os
import time
from collections.abc import Callable, Iterator

import dagster as dg

from resources.errors import ConfigurationError

PARTITIONED_ASSETS = ("probe_sets", "tokenised_batches", "work_items", "extraction_requests", "hidden_states")

PROGRESS_SECONDS = 5.0

probe_shards = dg.DynamicPartitionsDefinition(name="probe_shards")


def partitions_a_run() -> int:
    """FABRIC_PARTITIONS_A_RUN, by default 20: the most partitions of one run of a backfill."""
    given = os.environ.get("FABRIC_PARTITIONS_A_RUN", "20")
    if not given.isdecimal() or int(given) < 1:
        raise ConfigurationError(
            f"FABRIC_PARTITIONS_A_RUN is {given!r}; expected a whole number of at least 1; "
            "correct it, or unset it for 20"
        )
    return int(given)


BACKFILL = dg.BackfillPolicy.multi_run(max_partitions_per_run=partitions_a_run())
"""A range of shards is one run, so that the engine loads once for it."""


GPU_POOL = "gpu"
"""The pool of what runs an engine: one step at a time a device (dagster.yaml), whatever number of runs there are."""


def each_part(context: dg.AssetExecutionContext, *, work: Callable[[str], int] = lambda _: 1) -> Iterator[str]:
    """The partition keys of the run in order; says how far it is, every few seconds. `work` weighs a partition."""
    parts = context.partition_keys
    total, done = sum(map(work, parts)), 0
    started = said = time.monotonic()
    for number, part in enumerate(parts):
        now = time.monotonic()
        if done and now - said >= PROGRESS_SECONDS:
            said = now
            left = (now - started) / done * (total - done)
            context.log.info(
                f"{number} of {len(parts)} partitions, {100 * done / total:.0f} % of the work; about {left:.0f} s left"
            )
        yield part
        done += work(part)
