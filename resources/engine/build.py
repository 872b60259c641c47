"""A checkpoint -> an engine directory.

Contract: what was built already, of the same model by the same versions, is kept: a graph would come out the same, and
a TensorRT plan would not (its kernels are chosen by measurement), and takes minutes.
"""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from resources.checkpoint import Checkpoint
from resources.checkpoint.tokenizer import Tokenizer
from resources.engine.config import (
    CONFIG_FILE,
    FOREIGN_PLAN,
    read_engine_config,
    read_engine_record,
    write_engine_config,
)
from resources.engine.folder import building_folder, is_sound, put_in_place
from resources.errors import EngineError
from resources.graph import GRAPH_VERSION, Precision, write_packed_graph
from resources.records import TAP, EngineRecord, Limits, model_key

GRAPH_FILE = "model.onnx"


def build_engine(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    engines_folder: Path,
    *,
    backend: str = "onnxruntime",
    precision: str = "float32",
    limits: Limits,
    tactic_sources: tuple[str, ...] = (),
) -> EngineRecord:
    """Builds an engine under `engines_folder` and gives its record; one that is there already is kept.

    `tactic_sources` are TensorRT's (`resources.engine.tensorrt_build`).
    """
    if backend not in _BUILDERS:
        raise EngineError(f"backend {backend!r} cannot be built; expected one of {sorted(_BUILDERS)}; choose one")
    longest = checkpoint.config.max_position_embeddings
    if limits.max_input_len > longest:
        raise EngineError(
            f"max_input_len is {limits.max_input_len}; the checkpoint's positions end at {longest}; lower it"
        )
    order = _Order(checkpoint, engines_folder, precision, limits, tactic_sources)
    builder = _BUILDERS[backend]
    provenance = {
        "model_key": model_key(
            checkpoint_digest=checkpoint.digest,
            graph_version=GRAPH_VERSION,
            tokenizer_id=tokenizer.tokenizer_id,
            tap=TAP,
            dtype=precision,
        ),
        "checkpoint_digest": checkpoint.digest,
        "tokenizer_id": tokenizer.tokenizer_id,
        "graph_version": GRAPH_VERSION,
        **builder.facts(order),
    }
    built = _built_already(engines_folder, {"backend": backend, **provenance}, limits)
    if built is not None:
        return built
    with building_folder(engines_folder) as building:
        builder.write(order, building / builder.plan)
        tokenizer.save(building)
        write_engine_config(
            building,
            backend=backend,
            plan=builder.plan,
            pretrained=_pretrained(checkpoint, precision),
            limits=limits,
            provenance=provenance,
        )
        return read_engine_record(put_in_place(building, engines_folder))


@dataclass(frozen=True)
class _Order:
    """What is to be built."""

    checkpoint: Checkpoint
    engines_folder: Path
    precision: str
    limits: Limits
    tactic_sources: tuple[str, ...]

    def write_graph(self, path: Path) -> None:
        write_packed_graph(self.checkpoint, path, precision=cast(Precision, self.precision))


@dataclass(frozen=True)
class _Builder:
    plan: str
    """The file that it writes."""
    facts: Callable[[_Order], dict[str, Any]]
    """What config.json says of the build: `versions`, of what writes the plan and what it is for, and more."""
    write: Callable[[_Order, Path], None]


def _facts_of_graph(order: _Order) -> dict[str, Any]:
    return {"versions": {name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime")}}


def _write_graph(order: _Order, plan: Path) -> None:
    if order.precision not in ("float32", "float16"):
        raise EngineError(
            f"precision is {order.precision!r}; ONNX Runtime on the CPU runs float32 and float16; choose one"
        )
    order.write_graph(plan)


def _facts_of_tensorrt(order: _Order) -> dict[str, Any]:
    from resources.engine.cuda_memory import describe_device
    from resources.engine.tensorrt_build import profiles
    from resources.engine.tensorrt_versions import import_tensorrt

    trt, device = import_tensorrt(), describe_device()
    return {
        "versions": {
            "onnx": importlib.metadata.version("onnx"),
            "tensorrt": trt.__version__,
            "gpu": device.name,
            "compute_capability": device.compute_capability,
        },
        "profiles": [asdict(p.limits) for p in profiles(order.limits)],
        "tactic_sources": list(order.tactic_sources),
    }


def _write_tensorrt_plan(order: _Order, plan: Path) -> None:
    from resources.engine.cuda_memory import describe_device
    from resources.engine.tensorrt_build import build_plan, timing_cache_path
    from resources.engine.tensorrt_versions import import_tensorrt, require_precision

    trt = import_tensorrt()
    require_precision(trt, order.precision)
    # The graph is only the way to the plan, and as large: it lies beside the engines, where there is room for one.
    with tempfile.TemporaryDirectory(prefix=".graph-", dir=order.engines_folder) as folder:
        graph = Path(folder) / GRAPH_FILE
        order.write_graph(graph)
        build_plan(
            trt,
            graph,
            plan,
            precision=order.precision,
            limits=order.limits,
            num_hidden_layers=order.checkpoint.config.num_hidden_layers,
            timing_cache=timing_cache_path(order.engines_folder, trt, describe_device().name),
            tactic_sources=order.tactic_sources,
        )


_BUILDERS = {
    "onnxruntime": _Builder(GRAPH_FILE, _facts_of_graph, _write_graph),
    "tensorrt": _Builder(FOREIGN_PLAN, _facts_of_tensorrt, _write_tensorrt_plan),
}


def _built_already(engines_folder: Path, wanted: Mapping[str, Any], limits: Limits) -> EngineRecord | None:
    """An unchanged engine whose configuration says all that is `wanted`; None where there is none."""
    # A name that begins with "." is of an engine half built, or of one that was put aside.
    for path in sorted(engines_folder.glob(f"[!.]*/{CONFIG_FILE}")):
        try:
            says = json.loads(path.read_bytes())["fabric"].items()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if wanted.items() <= says and is_sound(path.parent) and read_engine_config(path.parent).limits == limits:
            return read_engine_record(path.parent)
    return None


def _pretrained(checkpoint: Checkpoint, precision: str) -> dict[str, object]:
    config = checkpoint.config
    bounded = config.reach is not None and config.reach < config.max_position_embeddings
    return {
        **({"attention_reach": config.reach} if bounded else {}),
        "architecture": config.architecture,
        "dtype": precision,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "max_position_embeddings": config.max_position_embeddings,
    }
