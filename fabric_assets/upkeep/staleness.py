"""Which partitions have no vectors of a model, and which have vectors of what is not there any more. No Dagster.

Contract: decided by digests of content alone, a partition's own: of its files and how they are read (`probe_sets` was
made of it), of the probes (`work_items` was made of them) and of the work items (the vectors are of them). No row is
read, so the answer for 100,000 partitions takes seconds. A model with another `model_key` has no vectors yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from io_managers.contents import Contents, content_version, stored_contents
from io_managers.tables import HIDDEN_STATES, PROBE_SETS, WORK_ITEMS

State = Literal["current", "missing", "stale"]


@dataclass(frozen=True)
class PartitionState:
    """Whether a partition's vectors are those of its probes as they are registered now; `reason` says why not."""

    part: str
    state: State
    reason: str


def partition_states(lake: Path | str, registered: Mapping[str, bytes], *, model_key: str) -> list[PartitionState]:
    """The state of every registered partition, in the order of `registered`, which gives each one's identity (16 bytes,
    `probe_files.identity`). Raises `StoreError` where the lake cannot be read."""
    probes, items = stored_contents(lake, PROBE_SETS), stored_contents(lake, WORK_ITEMS)
    vectors = stored_contents(lake, HIDDEN_STATES, model_key=model_key)
    return [_state(part, content_version(identity), probes, items, vectors) for part, identity in registered.items()]


def summary(states: Iterable[PartitionState]) -> str:
    """How many partitions there are of each state and reason, as one line."""
    states = list(states)
    counts = Counter(f"{s.state} ({s.reason})" if s.state == "stale" else s.state for s in states)
    partitions = "1 partition" if len(states) == 1 else f"{len(states):,} partitions"
    return f"{partitions}: " + ", ".join(f"{n:,} {what}" for what, n in sorted(counts.items()))


def _state(part: str, identity: int, probes: Contents, items: Contents, vectors: Contents) -> PartitionState:
    if part not in vectors.content:
        return PartitionState(part, "missing", "no vectors of this model")
    for changed, reason in (
        (probes.made_of.get(part) != identity, "its probe file changed"),
        (items.made_of.get(part) != probes.content.get(part), "its probes changed"),
        (vectors.content[part] != items.content.get(part), "its work items changed"),
    ):
        if changed:
            return PartitionState(part, "stale", reason)
    return PartitionState(part, "current", "")
