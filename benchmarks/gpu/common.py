"""What the measurements on a GPU share: the model and its limits, texts, the report's header and where it goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from resources.checkpoint import DEFAULT_CHECKPOINT, Checkpoint, TokenizerPolicy, open_checkpoint
from resources.checkpoint.tokenizer import Tokenizer
from resources.engine.build import build_engine
from resources.engine.cuda_memory import describe_device
from resources.engine.tensorrt_versions import import_tensorrt
from resources.packing import bucket, buckets, plan
from resources.proof import ProvenEngine
from resources.records import Limits

LIMITS = Limits(max_batch_size=512, max_num_tokens=16384, max_input_len=512)
"""Of SmolLM2's engine; its plan has two profiles, up to 128 and up to 512 tokens."""


def smollm2(engines: Path, precision: str = "float16") -> Path:
    """The directory of SmolLM2's TensorRT engine, built in `engines` if it is not there already."""
    checkpoint = open_checkpoint(DEFAULT_CHECKPOINT)
    return build(
        checkpoint, checkpoint.tokenizer(TokenizerPolicy(max_tokens=LIMITS.max_input_len)), engines, precision, LIMITS
    )


def build(checkpoint: Checkpoint, tokenizer: Tokenizer, engines: Path, precision: str, limits: Limits) -> Path:
    """The directory of a TensorRT engine, built in `engines` if it is not there already."""
    record = build_engine(checkpoint, tokenizer, engines, backend="tensorrt", precision=precision, limits=limits)
    return engines / record.directory


def texts(path: Path) -> list[str]:
    """Of each row of a JSON Lines file every field that is a text, and all of them joined: texts of mixed length."""
    result = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = [value for value in json.loads(line).values() if isinstance(value, str)]
        result += [*fields, "\n".join(fields)] if len(fields) > 1 else fields
    return result


def sequences(path: Path) -> list[np.ndarray]:
    """The token ids of `texts` that fit, by ascending length, as work items are packed. The same on every machine."""
    tokenizer = open_checkpoint(DEFAULT_CHECKPOINT).tokenizer(TokenizerPolicy())
    encoded = [ids for ids in tokenizer.encode(texts(path)) if 0 < len(ids) <= LIMITS.max_input_len]
    return sorted(encoded, key=lambda ids: (len(ids), ids.tolist()))


def batches(items: Sequence[np.ndarray]) -> Iterator[tuple[range, int]]:
    """The places of each planned batch, and the profile that runs it."""
    for places in plan((len(ids) for ids in items), LIMITS):
        longest = max(len(items[i]) for i in places)
        yield places, buckets(LIMITS).index(bucket(longest, LIMITS))


def extract(engine: ProvenEngine, items: Sequence[np.ndarray]) -> np.ndarray:
    """float32 [n, hidden]: every sequence's vector, in planned batches."""
    rows = [engine.extract([items[i] for i in places]) for places, _ in batches(items)]
    return np.concatenate(rows).astype(np.float32)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float64 [n], row by row."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def header() -> dict[str, Any]:
    """`machine.describe`, with the GPU, its driver and TensorRT."""
    device = describe_device()
    return describe() | {
        "gpu": {"name": device.name, "compute_capability": device.compute_capability, "driver": _driver()},
        "tensorrt": import_tensorrt().__version__,
    }


def report(name: str, result: dict[str, Any]) -> None:
    """Writes `<name>.json` to $OUT, or to benchmarks/results, and prints what is in it, short."""
    folder = Path(os.environ.get("OUT") or Path(__file__).parents[1] / "results")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(header() | result, indent=2) + "\n")
    for key, value in result.items():
        print(f"{name}  {key}: {json.dumps(value)[:400]}")
    sys.stdout.flush()


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return run.stdout.split()[0]
