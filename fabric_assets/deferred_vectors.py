"""A partition's vectors, whose engine is opened only when they are pulled: what is stored already needs none.
No Dagster.

Contract: a `records.VectorStream`. Whoever stores it compares the engine's record with the store's; `begin` must refuse
an engine that is not the record's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fabric_assets.reports.norms import Norms
from resources.errors import EngineError
from resources.extraction import PartitionVectors, Throughput
from resources.records import Attestation, EngineRecord, HiddenStates


class DeferredVectors:
    """The vectors that `begin` gives, counted as they pass."""

    def __init__(
        self, *, part: str, engine: EngineRecord, input_digest: bytes, begin: Callable[[], PartitionVectors]
    ) -> None:
        """`input_digest` is `records.partition_digest` of the manifest; `begin` is called at most once."""
        self.part = part
        self.model_key = engine.model_key
        self.engine_id = engine.engine_id
        self.dtype = engine.precision
        self.dim = engine.hidden_size
        self.input_digest = input_digest
        self.norms = Norms()
        self._begin = begin
        self._vectors: PartitionVectors | None = None

    @property
    def throughput(self) -> Throughput | None:
        """None while nothing was pulled."""
        return None if self._vectors is None else self._vectors.throughput

    @property
    def attestation(self) -> Attestation:
        """Of the process that computes; an `EngineError` while nothing was pulled."""
        if self._vectors is None:
            raise EngineError(f"the vectors of {self.part} were not pulled yet; nobody computes them")
        return self._vectors.attestation

    def __iter__(self) -> Iterator[HiddenStates]:
        self._vectors = self._begin()
        for states in self._vectors:
            self.norms.add(states.payload, states.dtype)
            yield states

    def close(self) -> None:
        """Stops what was begun; the engine stays open."""
        if self._vectors is not None:
            self._vectors.close()
