"""What the proof sees of an engine's vectors: decoded, counted, fingerprinted, and compared against the noise.

Contract: comparison is of whole vectors, by relative distance ||a - b|| / max(||a||, ||b||), so that it does not depend
on a vector's scale; 0 is the same vector, and two unrelated vectors are about 1.4 apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resources.records import payload_elements

ROUNDING = {"float32": 2.0**-19, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The least noise floor of a dtype, as a relative distance.

Half types: one unit in the last place, the most by which two vectors can be apart that differ in one final rounding
only (half a unit each way). More would hurt, since 8 times this must stay below the movement that one token causes.
float32: 16 units, since differently summed matrix products, layer upon layer, were seen up to 2.7e-6 apart
(benchmarks/results/reference_parity_gsm8k_test.json), and float32 has room to spare. Runs that are compared have equal
shapes: on a deterministic engine what must not move does not move at all, and the floor only has to cover kernels that
are not.
"""

MOVED = 8.0
"""A vector has moved when its distance is above this many noise floors, and has not at or below one."""

TABLE_TOLERANCE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
"""By dtype, the most that two vectors of one token sequence may be apart in one table, as a relative distance: alone or
in a full pack, and from one build of a model to another. FP16 on an H200 was seen 0.0062 from float32 at most
(benchmarks/results/gpu_parity.json)."""

NOISE_CEILING = 8.0
"""The most roundings that identical runs may be apart; beyond, a small wrong movement could hide in the noise."""


@dataclass(frozen=True)
class Vectors:
    """One run's output, decoded."""

    values: np.ndarray
    """float32 [n, hidden]."""
    non_finite: int
    """Infinities and NaN, as elements."""
    denormal: int
    """Subnormal elements in the engine's own dtype."""

    @property
    def zero(self) -> bool:
        return not self.values.any()

    @property
    def fingerprints(self) -> np.ndarray:
        """float64 [n], the sum of absolute values of each vector, over its finite elements."""
        finite = np.where(np.isfinite(self.values), self.values, 0)
        return np.abs(finite, dtype=np.float64).sum(axis=1)


def decode(raw: np.ndarray, dtype: str) -> Vectors:
    """An engine's output [n, hidden] in its own dtype (bfloat16 as uint16 bits), decoded on the host."""
    values = payload_elements(np.ascontiguousarray(raw).view(np.uint8), dtype).astype(np.float32)
    tiny = float(np.finfo(np.float16 if dtype == "float16" else np.float32).tiny)
    magnitude = np.abs(values)
    return Vectors(
        values=values,
        non_finite=int(values.size - np.isfinite(values).sum()),
        denormal=int(((magnitude > 0) & (magnitude < tiny)).sum()),
    )


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Relative distance of each row of `a` [n, hidden] to the same row of `b`; float64 [n]."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    scale = np.maximum(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    return np.linalg.norm(a - b, axis=1) / np.where(scale > 0, scale, 1)
