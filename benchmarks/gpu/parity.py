"""Every vector of SmolLM2 in FP16 on the GPU against its float32 vector on a CPU, by optimisation profile.

usage: python -m benchmarks.gpu.parity PROBES.jsonl --reference reference.npy --engines FOLDER
The reference is `reference.py`'s, of the same file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import batches, cosines, extract, report, sequences, smollm2
from resources.proof import load

LEAST_COSINE = 0.9995
QUANTILES = (0.0, 0.001, 0.01, 0.1, 0.5)


def main() -> None:
    """Writes the report; exit 1 where a cosine is too low."""
    parser = argparse.ArgumentParser()
    parser.add_argument("probes", type=Path)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--engines", type=Path, required=True)
    arguments = parser.parse_args()
    items, expected = sequences(arguments.probes), np.load(arguments.reference)
    if len(items) != len(expected):
        sys.exit(f"{len(items)} texts and {len(expected)} reference vectors; make the reference of the same file")
    with load(smollm2(arguments.engines)) as engine:
        seen = extract(engine, items)
        proved = {"convention": engine.convention.value, "decided_by": engine.report.decided_by}
    found = cosines(seen, expected)
    errors = np.linalg.norm(seen - expected, axis=1) / np.linalg.norm(expected, axis=1)
    profile = np.concatenate([np.full(len(places), index) for places, index in batches(items)])
    lengths = np.array([len(ids) for ids in items])
    result: dict[str, Any] = proved | {
        "probes": len(items),
        "least_cosine_allowed": LEAST_COSINE,
        "below": int((found < LEAST_COSINE).sum()),
        "all": _distribution(found, errors, lengths),
    }
    for index in np.unique(profile):
        of = profile == index
        result[f"profile {index}"] = _distribution(found[of], errors[of], lengths[of])
    report("gpu_parity", result)
    # A cosine that is no number is not above the least either.
    sys.exit(0 if (found >= LEAST_COSINE).all() else 1)


def _distribution(found: np.ndarray, errors: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    return {
        "vectors": len(found),
        "shortest": int(lengths.min()),
        "longest": int(lengths.max()),
        "cosine_quantiles": {str(q): round(float(np.quantile(found, q)), 8) for q in QUANTILES},
        "largest_relative_error": round(float(errors.max()), 6),
        "median_relative_error": round(float(np.median(errors)), 6),
    }


if __name__ == "__main__":
    main()
