"""Where the milliseconds of a forward pass go: TensorRT's own time of every layer of the plan, at `speed`'s mixes.

A layer that TensorRT compiled out of many shows as one. For the kernels inside, run it under Nsight Compute with
`--profile-from-start off`: one pass of the mix named by `--kernels` is then marked for it, and nothing else is done.

usage: python -m benchmarks.gpu.layers --engines FOLDER [--model smollm2|width4096] [--kernels MIX]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import LIMITS, report
from benchmarks.gpu.speed import MIXES, engine_directory
from resources.engine.tensorrt_versions import import_tensorrt
from resources.packing import PackedBatch
from resources.proof import ProvenEngine, load

WARM_UP, PASSES, SHOWN = 5, 10, 40


def main() -> None:
    """Writes the report, or runs the one pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=Path, required=True)
    parser.add_argument("--model", choices=["smollm2", "width4096"], default="smollm2")
    parser.add_argument("--kernels", choices=list(MIXES))
    arguments = parser.parse_args()
    with load(engine_directory(arguments.model, arguments.engines, LIMITS)) as engine:
        if arguments.kernels:
            one_marked_pass(engine, batch_of(engine, MIXES[arguments.kernels]))
            return
        found = {name: layer_times(engine, batch_of(engine, lengths)) for name, lengths in MIXES.items()}
    report(f"gpu_layers_{arguments.model}", {"dtype": "float16", "milliseconds": found})


def batch_of(engine: ProvenEngine, lengths: list[int]) -> PackedBatch:
    """Random tokens in sequences of these lengths."""
    random = np.random.default_rng(0)
    return engine.pack([random.integers(100, engine.config.vocab_size, n, dtype=np.int32) for n in lengths])


def layer_times(engine: ProvenEngine, batch: PackedBatch) -> dict[str, Any]:
    """Mean milliseconds of a pass: of all layers, and of the slowest by name."""
    trt = import_tensorrt()
    taken: dict[str, float] = defaultdict(float)

    class Times(trt.IProfiler):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, name: str, ms: float) -> None:
            taken[name] += ms / PASSES

    for _ in range(WARM_UP):
        engine.submit(batch)()
    context, times = engine._engine._backend._context, Times()
    context.profiler = times
    taken.clear()
    for _ in range(PASSES):
        engine.submit(batch)()
    shown = sorted(taken.items(), key=lambda layer: -layer[1])[:SHOWN]
    return {
        "all": round(sum(taken.values()), 2),
        "layers": len(taken),
        "slowest": {n[:160]: round(ms, 3) for n, ms in shown},
    }


def one_marked_pass(engine: ProvenEngine, batch: PackedBatch) -> None:
    """One pass between the marks that a profiler from outside looks for."""
    from cuda.bindings import runtime as cuda

    for _ in range(WARM_UP):
        engine.submit(batch)()
    cuda.cudaProfilerStart()
    engine.submit(batch)()
    cuda.cudaProfilerStop()


if __name__ == "__main__":
    main()
