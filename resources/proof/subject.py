"""What the checks after detection are made of: an engine to run, and what they take as given of it.

Contract: a check judges a subject by its vectors alone; who runs it, and with which profile, it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resources.packing import pack
from resources.proof.convention import Run
from resources.proof.tokens import Tokens
from resources.records import GatherConvention


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine that is to be shown right, run with one of its profiles."""

    run: Run
    tokens: Tokens
    convention: GatherConvention
    """The candidate that detection gave."""
    dtype: str
    seed: int
    """Of the tokens that a check draws; the same for every check, so that a verdict is the same every time."""

    def vectors(self, sequences: Sequence[np.ndarray]) -> np.ndarray:
        """[n, hidden]: the vectors of `sequences`, int32 each, run as one pack."""
        return self.run(pack(sequences, self.convention)).values

    def random(self) -> np.random.Generator:
        """From the seed anew."""
        return np.random.default_rng(self.seed)
