"""Tokens/s on the CPU against transformers: the same model, texts and threads, rounds taken in turn.

The project runs a proven engine on ONNX Runtime, packing included. The peer gets SDPA, batches sorted by length and the
best of three batch sizes for each set of lengths. Writes results/cpu_speed.json.

usage: FABRIC_PEER_PYTHON=path/to/python python benchmarks/cpu_speed.py [--threads 2] [--rounds 7]
The peer's Python has torch, transformers, accelerate and gguf.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

from resources.checkpoint import DEFAULT_CHECKPOINT, Checkpoint, TokenizerPolicy, open_checkpoint
from resources.engine.build import build_engine
from resources.packing import plan
from resources.proof import ProvenEngine, load
from resources.records import Limits

RESULT = Path(__file__).parent / "results" / "cpu_speed.json"
LIMITS = Limits(max_batch_size=64, max_num_tokens=2048, max_input_len=1024)
"""The project's defaults."""


def main() -> None:
    """Measures every set of lengths and writes the result file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(DEFAULT_CHECKPOINT)
    random = np.random.default_rng(3)
    sets = {
        "32 x 32": ([32] * 32, (8, 16, 32)),
        "8 x 128": ([128] * 8, (2, 4, 8)),
        "mixed 16-239": (sorted(random.integers(16, 240, 48).tolist()), (4, 8, 16)),
    }
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = checkpoint.tokenizer(TokenizerPolicy())
        record = build_engine(checkpoint, tokenizer, Path(folder), limits=LIMITS)
        with (
            Peer(checkpoint, arguments.threads, Path(folder)) as peer,
            load(Path(folder) / record.directory, threads=arguments.threads) as engine,
        ):
            rows = {
                name: measure(
                    engine,
                    peer,
                    [random.integers(17, 49152, n, dtype=np.int32) for n in lengths],
                    sizes,
                    arguments.rounds,
                )
                for name, (lengths, sizes) in sets.items()
            }
            header = describe() | {"peer": peer.versions}
    result = header | {"model": DEFAULT_CHECKPOINT, "dtype": "float32", "threads": arguments.threads, "sets": rows}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def measure(
    engine: ProvenEngine, peer: Peer, sequences: list[np.ndarray], batch_sizes: tuple[int, ...], rounds: int
) -> dict[str, object]:
    """Median tokens/s of both over `rounds` rounds taken in turn, after a warm-up in which the vectors are compared."""
    peer.give(sequences)
    ours, theirs = extract(engine, sequences), peer.vectors(batch_sizes[0])
    error = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
    for size in batch_sizes:
        peer.seconds(size)
    own: list[float] = []
    others: dict[int, list[float]] = {size: [] for size in batch_sizes}
    for _ in range(rounds):
        started = time.perf_counter()
        extract(engine, sequences)
        own.append(time.perf_counter() - started)
        for size in batch_sizes:
            others[size].append(peer.seconds(size))
    tokens = sum(map(len, sequences))
    best = min(batch_sizes, key=lambda size: statistics.median(others[size]))
    rates = [tokens / statistics.median(seconds) for seconds in (own, others[best])]
    return {
        "sequences": len(sequences),
        "tokens": tokens,
        "tokens_per_second": round(rates[0], 1),
        "peer_tokens_per_second": round(rates[1], 1),
        "ratio": round(rates[0] / rates[1], 3),
        "peer_batch_size": best,
        "largest_relative_error": float(error.max()),
        "seconds": [round(s, 4) for s in own],
        "peer_seconds": {size: [round(s, 4) for s in seconds] for size, seconds in others.items()},
    }


def extract(engine: ProvenEngine, sequences: list[np.ndarray]) -> np.ndarray:
    """Every sequence's vector, in batches cut as the project cuts work items."""
    batches = plan((len(s) for s in sequences), LIMITS)
    return np.concatenate([engine.extract([sequences[i] for i in batch]) for batch in batches])


class Peer:
    """transformers in a process of its own (`transformers_peer.py`), idle while the engine runs."""

    def __init__(self, checkpoint: Checkpoint, threads: int, folder: Path) -> None:
        python = os.environ.get("FABRIC_PEER_PYTHON")
        if not python:
            sys.exit("set FABRIC_PEER_PYTHON to a Python with torch, transformers, accelerate and gguf")
        script = Path(__file__).with_name("transformers_peer.py")
        self._sequences, self._vectors = folder / "sequences.npz", folder / "vectors.npy"
        self._process = subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._ask({"gguf": str(checkpoint.path), "threads": threads})

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def give(self, sequences: list[np.ndarray]) -> None:
        """The sequences of the passes that follow, sorted by length."""
        np.savez(self._sequences, *sequences)

    def seconds(self, batch_size: int) -> float:
        """The seconds of one pass in batches of `batch_size`."""
        return self._ask({"sequences": str(self._sequences), "batch_size": batch_size})["seconds"]

    def vectors(self, batch_size: int) -> np.ndarray:
        """float32 [n, hidden] of one pass."""
        self._ask({"sequences": str(self._sequences), "batch_size": batch_size, "vectors": str(self._vectors)})
        return np.load(self._vectors)

    def _ask(self, request: dict[str, object]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the peer ended with code {self._process.wait()} and gave no answer; its error is above")
        return json.loads(line)


if __name__ == "__main__":
    main()
