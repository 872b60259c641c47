"""What differs between TensorRT 8.6 and 11, and what every use of it needs: the one place that knows versions.

Contract: features are found by asking the module for them, never by comparing version numbers. TensorRT is imported
here, inside `import_tensorrt`, and handed on as `trt`; TensorRT-RTX and the lean runtime have the same interface.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from resources.errors import EngineError

PROGRESS_SECONDS = 5.0
_KEPT_ERRORS = 4
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT32": "int32",
    "INT64": "int64",
}
"""Tensor dtypes by the name of TensorRT's own; `trt.nptype` of 8.6 fails on numpy 1.24 and newer."""

logger = logging.getLogger("fabric.engine")


def import_tensorrt() -> Any:
    """The module, 8.6 or newer; an `EngineError` says what to install."""
    try:
        import tensorrt
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineError(
            f"TensorRT cannot be imported ({error}); install this project's extra `gpu`, or use the backend onnxruntime"
        ) from error
    if not hasattr(tensorrt.IExecutionContext, "execute_async_v3"):
        raise EngineError(f"TensorRT is {tensorrt.__version__}; expected 8.6 or newer; upgrade it")
    return tensorrt


def dtype_name(trt_dtype: Any) -> str:
    """ "float16" and so on; a dtype that no binding can have keeps TensorRT's own name."""
    return _DTYPES.get(trt_dtype.name, trt_dtype.name)


def require_precision(trt: Any, precision: str) -> None:
    """Passes only a precision that this version builds."""
    supported = [n for t, n in _DTYPES.items() if n in ("float32", "float16", "bfloat16") and hasattr(trt.DataType, t)]
    if precision not in supported:
        raise EngineError(
            f"precision is {precision!r}; TensorRT {trt.__version__} builds {', '.join(supported)}; use one of them"
        )


def strongly_typed(trt: Any) -> bool:
    """Whether a network takes its types from the graph: from 9 on."""
    return hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")


def network_flags(trt: Any) -> int:
    """Strong types where there are any; an explicit batch dimension where it still has to be asked for (8.6)."""
    flags = trt.NetworkDefinitionCreationFlag.__members__
    return sum(1 << int(flags[name]) for name in ("STRONGLY_TYPED", "EXPLICIT_BATCH") if name in flags)


def set_precision(trt: Any, config: Any, network: Any, *, precision: str, float32_tensors: frozenset[str]) -> None:
    """Makes a build keep to the graph's types. `float32_tensors` are the names of its float32 values, initializers
    among them.

    A strongly typed network does so by itself. In a weakly typed one (8.6) FP16 is allowed and the layers that the
    graph computes in float32 (norms' statistics, softmax) are held to it: the squares of a real model's states do not
    fit half precision.
    """
    if precision == "float32" and hasattr(trt.BuilderFlag, "TF32"):
        # On by default; it computes matrix products with 10 bits of mantissa.
        config.clear_flag(trt.BuilderFlag.TF32)
    if strongly_typed(trt) or precision == "float32":
        return
    config.set_flag(trt.BuilderFlag.FP16)
    config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    held = _hold_to_float32(trt, network, float32_tensors)
    logger.info("%d of %d layers are held to float32", held, network.num_layers)


def restrict_tactics(trt: Any, config: Any, sources: tuple[str, ...]) -> None:
    """Allows kernels of these `trt.TacticSource` only; () is none but TensorRT's own."""
    known = trt.TacticSource.__members__ if hasattr(trt, "TacticSource") else {}
    unknown = sorted(set(sources) - set(known))
    if unknown:
        raise EngineError(
            f"tactic sources {unknown} are unknown; TensorRT {trt.__version__} has {sorted(known)}; leave them out"
        )
    if known and not config.set_tactic_sources(sum(1 << int(known[name]) for name in sources)):
        raise EngineError(f"TensorRT {trt.__version__} refused the tactic sources {sources}; leave them out")


def show_progress(trt: Any, config: Any) -> None:
    """Logs how far a build is, where the version can tell (from 10 on)."""
    if hasattr(trt, "IProgressMonitor"):
        config.progress_monitor = _progress_monitor(trt)()


def activation_bytes(engine: Any) -> int:
    """Device memory of one execution context."""
    return int(engine.device_memory_size_v2 if hasattr(engine, "device_memory_size_v2") else engine.device_memory_size)


class TensorRtLog:
    """The last errors that TensorRT reported, for the message of what failed."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=_KEPT_ERRORS)

    def said(self) -> str:
        """What was reported since it was cleared, as the end of a sentence; empty when nothing was."""
        text = "; ".join(self.errors)
        return f" (TensorRT: {text})" if text else ""


@functools.cache
def open_log(trt: Any) -> tuple[Any, TensorRtLog]:
    """TensorRT's logger and what it has heard. One for the whole process: TensorRT keeps the first one it is given."""
    log = TensorRtLog()

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                log.errors.append(message.strip())
                logger.debug("TensorRT error: %s", message)
            elif severity == trt.ILogger.Severity.WARNING:
                logger.debug("TensorRT warning: %s", message)

    return Logger(), log


def checked(log: TensorRtLog, what: str | Callable[[], str], call: Callable[..., Any], *arguments: Any) -> Any:
    """One TensorRT call; a false, a None or an exception is an `EngineError` that begins with `what`.

    Whether a call says no by its result or by raising differs from call to call and from version to version.
    """
    log.errors.clear()
    try:
        result = call(*arguments)
    except (RuntimeError, TypeError, ValueError) as error:
        raise EngineError(f"{_said(what)} ({error}){log.said()}") from error
    finally:
        # A traceback keeps what its frames hold: a bound method would keep the engine's memory on the device.
        del call, arguments
    if result is None or result is False:
        raise EngineError(f"{_said(what)}{log.said()}")
    return result


def _hold_to_float32(trt: Any, network: Any, float32_tensors: frozenset[str]) -> int:
    """Holds every layer that makes one of `float32_tensors`, or works on one, and says how many.

    Only the graph's names tell: a weakly typed network says FLOAT of half tensors too, its constants among them. The
    parser names a constant's layer, not its tensor, after the graph's; and it makes several layers of some operators,
    of which only the last makes a tensor of the graph's own name.
    """
    known, held = set(float32_tensors), 0
    floating = {trt.DataType.FLOAT, trt.DataType.HALF}
    for layer in (network.get_layer(i) for i in range(network.num_layers)):
        outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
        inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
        if layer.type == trt.LayerType.CAST or any(o.dtype not in floating for o in outputs):
            continue
        if layer.type == trt.LayerType.CONSTANT:
            if layer.name in float32_tensors:
                known.update(o.name for o in outputs)
            continue
        if known.isdisjoint(t.name for t in (*inputs, *outputs) if t is not None):
            continue
        layer.precision = trt.DataType.FLOAT
        for index in range(layer.num_outputs):
            layer.set_output_type(index, trt.DataType.FLOAT)
        known.update(o.name for o in outputs)
        held += 1
    return held


def _said(what: str | Callable[[], str]) -> str:
    return what if isinstance(what, str) else what()


@functools.cache
def _progress_monitor(trt: Any) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}
            self._said = time.monotonic()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if time.monotonic() - self._said >= PROGRESS_SECONDS:
                self._said = time.monotonic()
                logger.info("building: %s, step %d of %d", phase_name, step + 1, self._steps.get(phase_name, step + 1))
            return True

    return Monitor
