"""What the proof says of every engine of the tests' zoo, right and wrong, as a TensorRT plan on the GPU.

usage: python -m benchmarks.gpu.zoo [--processes N]
Exit 1 where a right engine is refused, its convention is not the one that it has, or a wrong engine is accepted. In
half precision a wrong engine may be refused for another reason than the one that the tests name, which are float32's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import report
from resources.engine.cuda_memory import describe_device
from resources.engine.tensorrt_build import build_plan
from resources.engine.tensorrt_versions import import_tensorrt
from resources.errors import EngineError, EngineRefused
from resources.proof import load
from resources.records import Limits
from tests import zoo

PRECISIONS = ("float16", "float32")
RIGHT_REFUSED, WRONG_ACCEPTED = "right and refused", "wrong and accepted"


def main() -> None:
    """Writes the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=6)
    arguments = parser.parse_args()
    cases = [(kind, precision) for kind in zoo.KINDS for precision in PRECISIONS]
    # A process apart: TensorRT may end the one that it is in, and no process forks once CUDA is open.
    with ProcessPoolExecutor(arguments.processes, multiprocessing.get_context("spawn")) as pool:
        rows = {}
        for case, row in zip(cases, pool.map(verdict, *zip(*cases, strict=True)), strict=True):
            rows[case] = row
            print(*case, row["outcome"], row["seconds"], flush=True)
    result = {precision: {kind: rows[kind, precision] for kind in zoo.KINDS} for precision in PRECISIONS}
    outcomes = Counter(row["outcome"] for row in rows.values())
    report("gpu_zoo", {"engines": len(rows), "outcomes": dict(outcomes)} | result)
    sys.exit(1 if outcomes.keys() & {RIGHT_REFUSED, WRONG_ACCEPTED} else 0)


def verdict(kind: str, precision: str) -> dict[str, Any]:
    """The proof's own words for one engine, and how long its plan and its proof took together."""
    started = time.perf_counter()
    said = judged(kind, precision)
    return said | {"seconds": round(time.perf_counter() - started, 1)}


def judged(kind: str, precision: str) -> dict[str, Any]:
    """The outcome, and the proof's own words."""
    expected = zoo.KINDS[kind]
    right = "proved" in expected.reasons
    with tempfile.TemporaryDirectory() as folder:
        try:
            zoo.write_engine(kind, Path(folder), precision=precision, to_plan=to_plan(precision))
        except EngineError as error:
            return {"outcome": "no plan of it", "said": str(error)[:300]}
        try:
            with load(Path(folder)) as engine:
                found, decided_by = engine.convention, engine.report.decided_by
        except EngineRefused as refused:
            reason = refused.report.reason
            wrong = "refused as expected" if reason in expected.reasons else "refused for another reason"
            return {"outcome": RIGHT_REFUSED if right else wrong, "verdict": reason, "said": str(refused)[:300]}
    accepted = "proved as expected" if right and found is expected.convention else WRONG_ACCEPTED
    return {"outcome": accepted, "verdict": "proved", "convention": found.value, "decided_by": decided_by}


def to_plan(precision: str) -> Any:
    """What the zoo makes its plans with: the quickest build."""

    def build(graph: Path, plan: Path, limits: Limits) -> Mapping[str, str]:
        trt, device = import_tensorrt(), describe_device()
        build_plan(trt, graph, plan, precision=precision, limits=limits, num_hidden_layers=1, optimization_level=0)
        return {"tensorrt": trt.__version__, "gpu": device.name, "compute_capability": device.compute_capability}

    return build


if __name__ == "__main__":
    main()
