"""How long the vectors of a partition are, counted while they pass: memory does not grow with the rows.

Contract: norms are Euclidean, of payloads as `records.HiddenStates` holds them. Least, greatest and mean are exact; the
histogram is counted in fine logarithmic steps, of 1/32 of a doubling, and shown in steps that a person can read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resources.records import payload_elements

STEPS_A_DOUBLING = 32
DOUBLINGS = 48
"""Norms from 2**-24 to 2**24 are told apart; what lies outside is counted at the ends."""


@dataclass(frozen=True)
class NormBin:
    """Vectors with a norm from `least` up to `greatest`."""

    least: float
    greatest: float
    vectors: int


class Norms:
    """Counts the norms of payloads."""

    def __init__(self) -> None:
        self.vectors = 0
        self.least = float("inf")
        self.greatest = 0.0
        self._sum = 0.0
        self._counts = np.zeros(DOUBLINGS * STEPS_A_DOUBLING, dtype=np.int64)

    @property
    def mean(self) -> float:
        """0 where nothing was counted."""
        return self._sum / self.vectors if self.vectors else 0.0

    def add(self, payload: np.ndarray, dtype: str) -> None:
        """Counts the rows of `payload`, uint8 [n, width], whose elements are little-endian `dtype`."""
        if not len(payload):
            return
        elements = payload_elements(payload, dtype)
        norms = np.sqrt(np.einsum("ij,ij->i", elements, elements, dtype=np.float64))
        self.vectors += len(norms)
        self._sum += float(norms.sum())
        self.least = min(self.least, float(norms.min()))
        self.greatest = max(self.greatest, float(norms.max()))
        doublings = np.log2(np.maximum(norms, np.finfo(np.float64).tiny)) + DOUBLINGS / 2
        steps = np.clip(doublings * STEPS_A_DOUBLING, 0, len(self._counts) - 1).astype(np.int64)
        self._counts += np.bincount(steps, minlength=len(self._counts))

    def histogram(self, bins: int = 10) -> list[NormBin]:
        """Equal steps from the least norm to the greatest; one where all are about the same, none without vectors."""
        if not self.vectors:
            return []
        used = np.flatnonzero(self._counts)
        if len(used) == 1 or self.least <= 0:
            return [NormBin(self.least, self.greatest, self.vectors)]
        middles = 2.0 ** ((used + 0.5) / STEPS_A_DOUBLING - DOUBLINGS / 2)
        edges = np.linspace(self.least, self.greatest, min(bins, len(used)) + 1)
        places = np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, len(edges) - 2)
        counts = np.bincount(places, weights=self._counts[used], minlength=len(edges) - 1)
        pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), counts.astype(int).tolist(), strict=True)
        return [NormBin(*pair) for pair in pairs]
