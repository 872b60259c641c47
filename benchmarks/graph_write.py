"""Seconds and peak memory to write the graph of a 1-billion-parameter random Llama, and to load it with ONNX Runtime.

The checkpoint is a folder as transformers saves it, bfloat16 in shards, made for the run and removed after it. Each
step runs in a process of its own, whose peak is its resident set (VmHWM). Writes results/graph_write.json.

usage: python benchmarks/graph_write.py [--precision float32 float16]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from machine import describe
from safetensors.numpy import save_file

from resources.checkpoint.architectures import read_config
from resources.checkpoint.config import tensor_specs

RESULT = Path(__file__).parent / "results" / "graph_write.json"

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
"""Llama-3.2-1B's shape."""


def main() -> None:
    """Makes the checkpoint, measures each precision and writes the result file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", nargs="+", default=["float32", "float16"])
    parser.add_argument("--step", nargs=3, metavar=("NAME", "CHECKPOINT", "GRAPH"))
    parser.add_argument("--graph-precision")
    arguments = parser.parse_args()
    if arguments.step:
        name, checkpoint, graph = arguments.step
        print(json.dumps(_STEPS[name](checkpoint, Path(graph), arguments.graph_precision)))
        return
    header = describe()
    with tempfile.TemporaryDirectory(dir=os.environ.get("FABRIC_BENCH_DIR")) as folder:
        checkpoint = Path(folder) / "checkpoint"
        parameters = make_checkpoint(checkpoint)
        idle = _measure("idle", checkpoint, Path(folder) / "none.onnx", "float32")
        rows = {p: _measure_precision(checkpoint, Path(folder), p) for p in arguments.precision}
    result = header | {
        "model": "random llama of Llama-3.2-1B's shape, bfloat16 shards",
        "parameters": parameters,
        "imports_alone_peak_mb": idle["peak_mb"],
        "precisions": rows,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def make_checkpoint(folder: Path) -> int:
    """Writes a random checkpoint, a shard a layer, and gives its number of parameters."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    random = np.random.default_rng(0)
    shards: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in _stored_shapes().items():
        parts = name.split(".")
        shards.setdefault(f"model-{parts[2] if parts[1] == 'layers' else parts[1]}.safetensors", {})[name] = shape
    for file, shapes in shards.items():
        save_file({n: _weight(random, shape) for n, shape in shapes.items()}, folder / file)
    index = {"weight_map": {name: file for file, shapes in shards.items() for name in shapes}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(int(np.prod(shape)) for shape in _stored_shapes().values())


def _stored_shapes() -> dict[str, tuple[int, ...]]:
    from resources.checkpoint.architectures import ARCHITECTURES

    config = read_config(CONFIG, where="the benchmark's model")
    sources = ARCHITECTURES["llama"].sources(config)
    return {f"model.{sources[spec.name].name}": spec.shape for spec in tensor_specs(config)}


def _weight(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    weight = random.standard_normal(shape, dtype=np.float32)
    weight = 1 + weight / 10 if len(shape) == 1 else weight / np.float32(shape[-1]) ** np.float32(0.5)
    return weight.astype(ml_dtypes.bfloat16)


def _measure_precision(checkpoint: Path, folder: Path, precision: str) -> dict[str, Any]:
    graph = folder / f"{precision}.onnx"
    written = _measure("write", checkpoint, graph, precision)
    data = graph.with_name(f"{graph.name}.data")
    sizes = {"graph_mb": round(graph.stat().st_size / 2**20, 1), "data_mb": round(data.stat().st_size / 2**20)}
    loaded = _measure("load", checkpoint, graph, precision)
    for path in (graph, data):
        path.unlink()
    return {"write": written, **sizes, "load_and_run": loaded}


def _measure(step: str, checkpoint: Path, graph: Path, precision: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--step", step, str(checkpoint), str(graph), "--graph-precision", precision]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(child.stdout.splitlines()[-1])


def _idle(checkpoint: str, graph: Path, precision: str) -> dict[str, Any]:
    from resources.checkpoint import open_checkpoint
    from resources.graph import write_packed_graph  # noqa: F401

    open_checkpoint(checkpoint)
    return {"peak_mb": _peak_mb()}


def _write(checkpoint: str, graph: Path, precision: Any) -> dict[str, Any]:
    from resources.checkpoint import open_checkpoint
    from resources.graph import write_packed_graph

    started = time.perf_counter()
    opened = open_checkpoint(checkpoint)
    write_packed_graph(opened, graph, precision=precision)
    written = time.perf_counter()
    _ = opened.digest
    return {
        "seconds": round(written - started, 1),
        "peak_mb": _peak_mb(),
        "digest_seconds": round(time.perf_counter() - written, 1),
    }


def _load(checkpoint: str, graph: Path, precision: str) -> dict[str, Any]:
    import onnxruntime

    from resources.packing import GatherConvention, pack

    started = time.perf_counter()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    loaded = time.perf_counter()
    batch = pack([np.arange(100, 116, dtype=np.int32), np.arange(3, dtype=np.int32)], GatherConvention.EXCLUSIVE_END)
    inputs = {i.name: getattr(batch, i.name) for i in session.get_inputs()}
    vectors = session.run(["hidden_states"], inputs)[0]
    if vectors.shape != (2, CONFIG["hidden_size"]) or not np.isfinite(vectors).all() or not vectors.any():
        raise SystemExit(f"the graph gives {vectors}")
    return {"load_seconds": round(loaded - started, 1), "run_seconds": round(time.perf_counter() - loaded, 1)}


_STEPS = {"idle": _idle, "write": _write, "load": _load}


def _peak_mb() -> int:
    """The process's greatest resident set. getrusage's would begin at its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024)
    raise SystemExit("/proc/self/status has no VmHWM")


if __name__ == "__main__":
    main()
