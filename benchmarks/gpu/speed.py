"""Tokens/s of this project's engine in FP16, at the length mixes of a peer that is measured in the same lease.

Two models: SmolLM2, and 4 layers of width 4096 (llama-3-8B's shapes) with random weights. For each mix of about 16,384
tokens, the median of 20 passes: `forward`, from a packed batch to its vectors on the host; `extract`, packing included;
and `ahead`, as an extraction runs, which packs the next batch while one is on the GPU.

usage: python -m benchmarks.gpu.speed --engines FOLDER [--model smollm2|width4096] [--build-only] [--peer-log FILE]
The peer's results, as it printed them, are copied into the report.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import LIMITS, build, report, smollm2
from benchmarks.gpu.random_model import RandomModel
from resources.checkpoint import DEFAULT_CHECKPOINT, TokenizerPolicy, open_checkpoint
from resources.packing import most_sequences
from resources.proof import ProvenEngine, load
from resources.records import Limits

TOKENS = 16384
MIXES = {
    "32 x 512": [32] * (TOKENS // 32),
    "128 x 128": [128] * (TOKENS // 128),
    "512 x 32": [512] * (TOKENS // 512),
    "mixed 16-239": sorted(int(n) for n in np.random.default_rng(3).integers(16, 240, TOKENS // 128)),
}
"""Length x sequences; the mixed one is the peer's own."""
WARM_UP, PASSES = 5, 20


def main() -> None:
    """Builds what is missing, measures every mix and writes the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=Path, required=True)
    parser.add_argument("--model", choices=["smollm2", "width4096"], default="smollm2")
    parser.add_argument("--max-input-len", type=int, default=LIMITS.max_input_len)
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--peer-log", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    limits = Limits(LIMITS.max_batch_size, LIMITS.max_num_tokens, arguments.max_input_len)
    directory = engine_directory(arguments.model, arguments.engines, limits)
    built = time.perf_counter() - started
    print(f"built, or found, in {built:.0f} s: {directory}", flush=True)
    if arguments.build_only:
        report(f"gpu_build_{arguments.model}", {"dtype": "float16", "build_seconds": round(built, 1)} | asdict(limits))
        return
    with load(directory) as engine:
        rows = {
            name: measure(engine, lengths)
            for name, lengths in MIXES.items()
            if max(lengths) <= limits.max_input_len and len(lengths) <= most_sequences(max(lengths), limits)
        }
    printed = arguments.peer_log.read_text().splitlines() if arguments.peer_log else []
    peer = [line for line in printed if line.startswith(("hf ", "matmul "))]
    report(
        f"gpu_speed_{arguments.model}",
        {
            "dtype": "float16",
            "build_seconds": round(built, 1),
            "max_input_len": limits.max_input_len,
            **rows,
            "peer": peer,
        },
    )


def engine_directory(model: str, engines: Path, limits: Limits) -> Path:
    """The engine of `model`, built if need be."""
    if model == "smollm2" and limits == LIMITS:
        return smollm2(engines)
    checkpoint = open_checkpoint(DEFAULT_CHECKPOINT) if model == "smollm2" else RandomModel()
    return build(checkpoint, checkpoint.tokenizer(TokenizerPolicy()), engines, "float16", limits)


def measure(engine: ProvenEngine, lengths: list[int]) -> dict[str, Any]:
    """Median tokens/s of each way to run one batch again and again."""
    random = np.random.default_rng(0)
    items = [random.integers(100, engine.config.vocab_size, n, dtype=np.int32) for n in lengths]
    packed = engine.pack(items)

    def ahead() -> None:
        """A round of passes, each batch packed while the one before it runs."""
        running = None
        for _ in range(PASSES):
            batch = engine.pack(items)
            if running:
                running()
            running = engine.submit(batch)
        if running:
            running()

    seconds = {
        "forward": median_of(lambda: engine.submit(packed)(), PASSES),
        "extract": median_of(lambda: engine.extract(items), PASSES),
        "ahead": median_of(ahead, 3) / PASSES,
    }
    return {
        "sequences": len(lengths),
        "tokens": sum(lengths),
        "padded_share": round(1 - sum(lengths) / packed.padded_index.size, 3),
        **{f"{name}_ms": round(1e3 * s, 2) for name, s in seconds.items()},
        **{f"{name}_tokens_per_second": round(sum(lengths) / s) for name, s in seconds.items()},
    }


def median_of(run: Callable[[], object], times: int) -> float:
    """Seconds of one run; every run ends with its vectors on the host, so that the host's clock will do."""
    for _ in range(WARM_UP):
        run()
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
