"""Which kernels a forward pass runs, in which precision, and how long each takes, as Nsight Compute sees it.

TensorRT compiles the whole decoder into one layer, so that its own profiler shows one figure. Two steps:

    ncu --profile-from-start off --clock-control none --metrics gpu__time_duration.sum --csv --page raw \\
        --log-file FILE python -m benchmarks.gpu.kernels --engines FOLDER [--model smollm2|width4096] --mix "128 x 128"
    python -m benchmarks.gpu.kernels --read FILE [--model ...] --mix "128 x 128"

The first marks one pass of the mix for the profiler. The second adds the kernels up and writes the report.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import LIMITS, report
from benchmarks.gpu.speed import MIXES, engine_directory
from resources.proof import ProvenEngine, load

WARM_UP, SHOWN = 5, 30
TIME = "gpu__time_duration.sum"


def main() -> None:
    """Runs the one pass, or reads what was seen of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=Path)
    parser.add_argument("--model", choices=["smollm2", "width4096"], default="smollm2")
    parser.add_argument("--mix", choices=list(MIXES), required=True)
    parser.add_argument("--read", type=Path)
    arguments = parser.parse_args()
    if arguments.read:
        result = {"dtype": "float16", "mix": arguments.mix} | kernels(arguments.read.read_text().splitlines())
        report(f"gpu_kernels_{arguments.model}", result)
        return
    with load(engine_directory(arguments.model, arguments.engines, LIMITS)) as engine:
        one_marked_pass(engine, MIXES[arguments.mix])


def one_marked_pass(engine: ProvenEngine, lengths: list[int]) -> None:
    """One pass over random tokens between the marks that the profiler looks for."""
    from cuda.bindings import runtime as cuda

    random = np.random.default_rng(0)
    batch = engine.pack([random.integers(100, engine.config.vocab_size, n, dtype=np.int32) for n in lengths])
    for _ in range(WARM_UP):
        engine.submit(batch)()
    cuda.cudaProfilerStart()
    engine.submit(batch)()
    cuda.cudaProfilerStop()


def kernels(lines: list[str]) -> dict[str, Any]:
    """Milliseconds of one pass, its matrix products by precision, and its slowest kernels, alike ones added up."""
    header, units, *rows = csv.reader(line for line in lines if line.startswith('"'))
    name, time = header.index("Kernel Name"), header.index(TIME)
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0}[units[time]]
    taken: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        taken[_alike(row[name])].append(scale * float(row[time].replace(",", "")))
    products: dict[str, float] = defaultdict(float)
    for kernel, times in taken.items():
        if match := re.search(r"gemm_([a-z0-9]+_[a-z0-9]+_[a-z0-9]+)_", kernel):
            products[match[1]] += sum(times)
    shown = sorted(taken.items(), key=lambda kernel: -sum(kernel[1]))[:SHOWN]
    return {
        "kernels": len(rows),
        "milliseconds": round(sum(map(sum, taken.values())), 2),
        "milliseconds_of_products": {kind: round(ms, 2) for kind, ms in sorted(products.items())},
        "slowest": {kernel[:120]: {"times": len(ms), "milliseconds": round(sum(ms), 3)} for kernel, ms in shown},
    }


def _alike(kernel: str) -> str:
    """TensorRT numbers the kernels that it generates."""
    return re.sub(r"^__myl_bb\d+_\d+_", "__myl_", kernel)


if __name__ == "__main__":
    main()
