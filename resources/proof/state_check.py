"""Whether the states inside an engine stay within the range of its dtype, and what to build when they do not.

Contract: an overflow can hide from the vectors, since a saturating function makes a finite number of an infinity; so
the layers themselves are looked at, on the sample probes, where the dtype is narrow and the backend can show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from resources.engine.bindings import Binding
from resources.engine.config import EngineConfig
from resources.engine.layer_states import LayerOutput, layer_outputs
from resources.errors import EngineError
from resources.packing import pack
from resources.proof.samples import Sample
from resources.proof.validation import LayerState, StateCheck
from resources.records import GatherConvention

LARGEST = {
    "float32": float(np.finfo(np.float32).max),
    "float16": float(np.finfo(np.float16).max),
    "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
}


def check_states(
    directory: Path,
    config: EngineConfig,
    bindings: Sequence[Binding],
    samples: Sequence[Sample],
    *,
    threads: int | None = None,
) -> StateCheck | None:
    """The states after each layer on the sample probes; None where the backend shows no layers.

    The convention is not known yet, and need not be: only the last layer gathers, and `resources.graph` has exclusive
    ends.
    """
    batch = pack([s.ids for s in samples], GatherConvention.EXCLUSIVE_END)
    layers = tuple(_state(o) for o in layer_outputs(directory, config, bindings, batch, threads=threads))
    if not layers:
        return None
    broken = [layer for layer in layers if layer.non_finite]
    reason = sentence = None
    if broken:
        reason = "non-finite"
        sentence = (
            f"{broken[0].non_finite} of {broken[0].elements} elements of {broken[0].name} are not finite on the sample "
            f"probes, and those of {len(broken) - 1} layers after it; {config.dtype} ends at "
            f"{LARGEST[config.dtype]:.6g}"
        )
    return StateCheck(LARGEST[config.dtype], layers, reason, sentence)


def advice_if_not_finite(config: EngineConfig) -> str:
    """What to build when an engine's numbers are not finite: the narrowest precision with a wider range that this
    backend has."""
    match config.dtype, config.backend:
        case "float16", "tensorrt" if _builds_bfloat16():
            return "expected finite numbers, for which float16 is too narrow; build the engine in bfloat16"
        case "float16", "tensorrt":
            return (
                "expected finite numbers, for which float16 is too narrow; build the engine in float32, since this "
                "TensorRT has no bfloat16"
            )
        case "float16", _:
            return (
                "expected finite numbers, for which float16 is too narrow; build the engine in float32, since ONNX "
                "Runtime has no bfloat16 on the CPU"
            )
    return f"expected finite numbers, and {config.dtype} has room for large ones; check the checkpoint's weights"


def _builds_bfloat16() -> bool:
    from resources.engine.tensorrt_versions import import_tensorrt, require_precision

    try:
        require_precision(import_tensorrt(), "bfloat16")
    except EngineError:
        return False
    return True


def _state(output: LayerOutput) -> LayerState:
    values = output.values.astype(np.float32)
    finite = np.isfinite(values)
    return LayerState(
        name=output.name.removesuffix("/output"),
        elements=values.size,
        non_finite=int(values.size - finite.sum()),
        greatest=float(np.abs(np.where(finite, values, 0)).max()),
    )
