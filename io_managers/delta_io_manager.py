"""The Dagster shell around the store: outputs to commits, tables to inputs.

Contract: an asset hands over what is to be written, never how. A partitioned asset returns `StageWrites` or
`VectorWrites`; `engine` and `engine_validation_report` return their record; anything else is refused. Every partition
of the run is written exactly once, in its own commit, its refusals before its rows. What the lineage check needs is
read from the store. A failure is a `dagster.Failure` without a retry; that of a vector stream comes out as itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from io_managers.delta_table import Committed
from resources.records import Refusal, VectorStream


@dataclass(frozen=True, kw_only=True)
class StageWrite:
    """One partition of a table: its rows, and the probes that this stage refused."""

    part: str
    stage: str
    content_digest: bytes
    """16 bytes; equal digests are the same content."""
    n_rows: int
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """Gives the rows in the table's schema; called at most once."""
    refusals: Sequence[Refusal] = ()
    scope: Mapping[str, str] = field(default_factory=dict)
    """What the write replaces besides `part`, for a table that has more than one partition column."""
    describe: Callable[[Committed], Mapping[str, Any]]
    """The Dagster metadata of the partition, once it is stored."""


@dataclass(frozen=True)
class StageWrites:
    """What a partitioned asset returns: one `StageWrite` for each partition key of the run, made when pulled."""

    writes: Iterable[StageWrite]

    def __iter__(self) -> Iterator[StageWrite]:
        return iter(self.writes)


@dataclass(frozen=True, kw_only=True)
class VectorWrite:
    """One partition of vectors."""

    stream: VectorStream
    describe: Callable[[Committed], Mapping[str, Any]]
    """The Dagster metadata of the partition, once it is stored."""


@dataclass(frozen=True)
class VectorWrites:
    """What the asset of vectors returns: one `VectorWrite` for each partition key of the run, made when pulled."""

    writes: Iterable[VectorWrite]

    def __iter__(self) -> Iterator[VectorWrite]:
        return iter(self.writes)
