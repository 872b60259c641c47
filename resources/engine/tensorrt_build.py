"""The packed ONNX graph -> a TensorRT plan, through TensorRT's own parser.

Contract: one optimisation profile for each length bucket of `resources.packing`, so that every planned batch fits one.
The plan keeps the graph's types; what a version needs for that is `tensorrt_versions`' business.
"""

from __future__ import annotations

import logging
import math
import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from resources.engine.bindings import input_shape
from resources.engine.tensorrt_versions import (
    checked,
    network_flags,
    open_log,
    require_precision,
    restrict_tactics,
    set_precision,
    show_progress,
)
from resources.errors import EngineError
from resources.packing import BUCKET_RATIO, PADDED_LENGTH_MULTIPLE, buckets, most_sequences, padded
from resources.records import Limits

_SHOWN_ERRORS = 3

logger = logging.getLogger("fabric.engine")


@dataclass(frozen=True)
class Profile:
    """One optimisation profile: what its batches hold at most, and what it is tuned for."""

    limits: Limits
    """`max_input_len` is the padded length inside attention."""
    tuned_for: Limits


def profiles(limits: Limits) -> tuple[Profile, ...]:
    """One for each length bucket, the shortest first; each takes from one token in one sequence up.

    Tuned for a full batch of sequences of the bucket's middle length: sorted work brings lengths from a quarter of a
    bucket up to all of it.
    """
    result = []
    shorter = buckets(limits)[0] // BUCKET_RATIO
    for length in buckets(limits):
        most = most_sequences(length, limits)
        middle = min(length, padded(math.isqrt(shorter * length)))
        n = max(1, min(most, limits.max_num_tokens // middle))
        result.append(
            Profile(
                Limits(most, limits.max_num_tokens, length),
                tuned_for=Limits(n, min(limits.max_num_tokens, n * middle), middle),
            )
        )
        shorter = length
    return tuple(result)


def build_plan(
    trt: Any,
    graph: Path,
    plan: Path,
    *,
    precision: str,
    limits: Limits,
    num_hidden_layers: int,
    timing_cache: Path | None = None,
    tactic_sources: tuple[str, ...] = (),
    optimization_level: int | None = None,
    compute_capability: str | None = None,
) -> None:
    """Writes to `plan` what TensorRT makes of `graph`; whatever it refuses is an `EngineError`.

    `timing_cache` is read, if it is there, and written. `tactic_sources` are names of `trt.TacticSource`: the libraries
    whose kernels may be used beside TensorRT's own, and none unless asked for, since they may not be installed.
    `optimization_level` goes from 0, the quickest build, to 5; None leaves it to TensorRT. `compute_capability` is for
    builders that need no GPU (TensorRT-RTX): "SM89" or another.
    """
    require_precision(trt, precision)
    native_log, log = open_log(trt)
    builder = checked(log, f"TensorRT {trt.__version__} has no builder here", trt.Builder, native_log)
    network = checked(log, "TensorRT made no network", builder.create_network, network_flags(trt))
    parser = trt.OnnxParser(network, native_log)
    if not parser.parse_from_file(str(graph)):
        errors = [str(parser.get_error(i)) for i in range(min(parser.num_errors, _SHOWN_ERRORS))]
        raise EngineError(
            f"TensorRT {trt.__version__} cannot parse {graph.name}: {'; '.join(errors)}{log.said()}; "
            "use a version that takes these operators, or the backend onnxruntime"
        )
    config = checked(log, "TensorRT made no builder configuration", builder.create_builder_config)
    set_precision(trt, config, network, precision=precision, float32_tensors=float32_tensors(graph))
    restrict_tactics(trt, config, tactic_sources)
    show_progress(trt, config)
    if optimization_level is not None:
        config.builder_optimization_level = optimization_level
    if compute_capability is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, compute_capability), 0)
    for profile in profiles(limits):
        _add_profile(builder, config, network, profile, num_hidden_layers)
    cache = _read_timing_cache(config, timing_cache)
    started = time.monotonic()
    logger.info(
        "TensorRT %s builds a plan in %s with %d profiles; this can take minutes",
        trt.__version__,
        precision,
        config.num_optimization_profiles,
    )
    built = checked(
        log,
        f"TensorRT {trt.__version__} could not build a plan for {limits}; lower the limits, or free the GPU",
        builder.build_serialized_network,
        network,
        config,
    )
    plan.write_bytes(built)
    logger.info("the plan is built: %d MiB in %.0f s", plan.stat().st_size >> 20, time.monotonic() - started)
    if cache is not None and timing_cache is not None:
        _write(timing_cache, cache.serialize())


def float32_tensors(graph: Path) -> frozenset[str]:
    """The names of the values that the graph computes in float32, and of its float32 initializers."""
    inside = onnx.shape_inference.infer_shapes(onnx.load(graph, load_external_data=False)).graph
    computed = (v.name for v in inside.value_info if v.type.tensor_type.elem_type == TensorProto.FLOAT)
    return frozenset((*computed, *(i.name for i in inside.initializer if i.data_type == TensorProto.FLOAT)))


def timing_cache_path(engines_folder: Path, trt: Any, gpu: str) -> Path:
    """Where the measurements of kernels are kept; they hold for one version on one GPU."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{trt.__version__}-{gpu}")
    return engines_folder / f".timing-{name}.cache"


def _add_profile(builder: Any, config: Any, network: Any, profile: Profile, layers: int) -> None:
    smallest = Limits(max_batch_size=1, max_num_tokens=1, max_input_len=PADDED_LENGTH_MULTIPLE)
    added = builder.create_optimization_profile()
    for tensor in (network.get_input(i) for i in range(network.num_inputs)):
        low, tuned, high = (
            input_shape(
                tensor.name,
                tokens=size.max_num_tokens,
                sequences=size.max_batch_size,
                padded_length=size.max_input_len,
                layers=layers,
            )
            for size in (smallest, profile.tuned_for, profile.limits)
        )
        if -1 in tuple(tensor.shape):
            added.set_shape(tensor.name, low, tuned, high)
    if config.add_optimization_profile(added) < 0:
        raise EngineError(f"TensorRT refused the optimisation profile {profile}; build with other limits")


def _read_timing_cache(config: Any, path: Path | None) -> Any:
    """The cache that the build reads and adds to, an empty one where the stored one does not fit; None without one."""
    if path is None:
        return None
    stored = path.read_bytes() if path.is_file() else b""
    for content in (stored, b""):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):
            return cache
        logger.warning("the timing cache %s does not fit this TensorRT; the build measures everything anew", path)
    return None


def _write(path: Path, content: Any) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".timing-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)
