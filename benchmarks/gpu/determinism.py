"""SmolLM2 in FP16 on the GPU: one batch twice, bit for bit; and a probe alone against the same in a full batch.

usage: python -m benchmarks.gpu.determinism PROBES.jsonl --engines FOLDER
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from benchmarks.gpu.common import batches, cosines, extract, report, sequences, smollm2
from resources.proof import load

ALONE = 400
"""Probes that run alone, evenly spread over the lengths."""


def main() -> None:
    """Writes the report; exit 1 where a batch gave other bits the second time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("probes", type=Path)
    parser.add_argument("--engines", type=Path, required=True)
    arguments = parser.parse_args()
    items = sequences(arguments.probes)
    with load(smollm2(arguments.engines)) as engine:
        planned = [[items[i] for i in places] for places, _ in batches(items)]
        first = [engine.extract(batch) for batch in planned]
        # The other way round, so that each batch follows another one than the first time.
        second = [engine.extract(batch) for batch in planned[::-1]][::-1]
        changed = sum(
            not np.array_equal(a.view(np.uint16), b.view(np.uint16)) for a, b in zip(first, second, strict=True)
        )
        full = extract(engine, items)
        chosen = np.unique(np.linspace(0, len(items) - 1, ALONE).astype(int))
        alone = np.concatenate([engine.extract([items[i]]) for i in chosen]).astype(np.float32)
    beside = full[chosen]
    differences = np.linalg.norm(alone - beside, axis=1) / np.linalg.norm(beside, axis=1)
    result = {
        "batches": len(planned),
        "batches_with_other_bits_the_second_time": changed,
        "probes_alone": len(chosen),
        "same_bits_alone_and_in_a_full_batch": int((alone == beside).all(axis=1).sum()),
        "largest_relative_difference": float(differences.max()),
        "median_relative_difference": float(np.median(differences)),
        "largest_difference_of_an_element": float(np.abs(alone - beside).max()),
        "least_cosine": float(cosines(alone, beside).min()),
    }
    report("gpu_determinism", result)
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
