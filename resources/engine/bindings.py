"""Which role each of an engine's tensors has, how large it gets, and what fills it.

Contract: an engine is used only when every tensor it exposes is known here by name. Names and meanings are those of
TensorRT-LLM's `GenerationMixin` (`prepare_basic_inputs`, `prepare_attention_inputs`) for packed input and a disabled
key-value cache, plus `padded_index` and `packed_index`, this project's own. A tensor named `host_*` is in host memory
whatever the engine says: TensorRT-LLM declares those like any other, and its plugins read them on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from resources.engine.config import EngineConfig
from resources.errors import EngineError
from resources.packing import PackedBatch, padded

NUMPY_DTYPE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}
"""Element type of a tensor's host array, by tensor dtype; bfloat16 is kept as its bits."""


class Role(Enum):
    """How a tensor's shape follows the batch."""

    PACKED = "packed"
    """One entry per token."""
    PER_SEQUENCE = "per-sequence"
    """One entry, or one row, per sequence."""
    STATIC = "static"
    """The same in every batch."""
    OUTPUT = "output"


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the engine exposes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """A dynamic dimension is -1."""
    is_input: bool
    location: str = "device"
    """"device", or "host" for one that the engine reads from host memory."""


@dataclass(frozen=True)
class Binding:
    """A tensor with its role."""

    tensor: TensorInfo
    role: Role
    maximum: tuple[int, ...]
    """Its largest shape."""
    values: Callable[[PackedBatch], np.ndarray] | None
    """What fills an input whose role follows the batch."""
    constant: int | None = None
    """What fills a static input."""

    def array(self, batch: PackedBatch) -> np.ndarray:
        """What fills this input in `batch`, before it is cast to the tensor's own dtype."""
        if self.values is not None:
            return self.values(batch)
        return np.full(self.maximum, self.constant, dtype=np.int64)


def classify(tensors: Iterable[TensorInfo], config: EngineConfig) -> tuple[Binding, ...]:
    """A binding for every tensor; one that is not known by name is an `EngineError` that names it."""
    tensors = tuple(tensors)
    unknown = [t.name for t in tensors if t.name not in (_INPUTS if t.is_input else {OUTPUT_NAME})]
    if unknown:
        raise EngineError(
            f"the engine has tensors of unknown meaning: {', '.join(unknown)}; expected only inputs among "
            f"{', '.join(sorted(_INPUTS))}, and the output {OUTPUT_NAME}; build an engine that exposes no others"
        )
    return tuple(_bind(t, config) for t in tensors)


def require_complete(bindings: tuple[Binding, ...], config: EngineConfig) -> None:
    """Passes only when what every packed engine needs is there, in the shapes and dtypes of a batch's arrays."""
    names = [b.tensor.name for b in bindings]
    missing = [n for n in ("input_ids", "last_token_ids", OUTPUT_NAME) if n not in names]
    if missing:
        raise EngineError(f"the engine lacks {', '.join(missing)}; it exposes {', '.join(names)}; build it again")
    for binding in bindings:
        tensor = binding.tensor
        fits = len(tensor.shape) == len(binding.maximum) and all(
            s in (-1, m) for s, m in zip(tensor.shape, binding.maximum, strict=True)
        )
        dtypes = {config.dtype} if binding.role is Role.OUTPUT else {"int32", "int64"}
        if not fits or tensor.dtype not in dtypes:
            raise EngineError(
                f"tensor {tensor.name} is {tensor.dtype} {list(tensor.shape)}; expected {' or '.join(sorted(dtypes))} "
                f"that takes {list(binding.maximum)} (-1 takes any size); build the engine again for its config.json"
            )
        if binding.role is not Role.STATIC and tensor.shape[0] != -1:
            raise EngineError(
                f"tensor {tensor.name} has the fixed first dimension {tensor.shape[0]}; expected a dynamic one (-1); "
                "build the engine with dynamic shapes"
            )


def input_shape(name: str, *, tokens: int, sequences: int, padded_length: int, layers: int) -> tuple[int, ...]:
    """The shape of the input `name` in a batch of these sizes; one of unknown meaning is an `EngineError`."""
    if name not in _INPUTS:
        raise EngineError(f"input {name} is of unknown meaning; expected one of {', '.join(sorted(_INPUTS))}")
    sizes = {"tokens": tokens, "sequences": sequences, "padded": padded_length, "layers": layers}
    return tuple(sizes[a] if isinstance(a, str) else a for a in _INPUTS[name].axes)


OUTPUT_NAME = "hidden_states"
"""The one output: [num_sequences, hidden_size], the gathered vectors after the final norm."""


@dataclass(frozen=True)
class _Input:
    role: Role
    axes: tuple[str | int, ...]
    values: Callable[[PackedBatch], np.ndarray] | None = None
    constant: Callable[[EngineConfig], int] | None = None


_INPUTS = {
    "input_ids": _Input(Role.PACKED, ("tokens",), lambda b: b.input_ids),
    "position_ids": _Input(Role.PACKED, ("tokens",), lambda b: b.position_ids),
    "packed_index": _Input(Role.PACKED, ("tokens",), lambda b: b.packed_index),
    "last_token_ids": _Input(Role.PER_SEQUENCE, ("sequences",), lambda b: b.last_token_ids),
    "context_lengths": _Input(Role.PER_SEQUENCE, ("sequences",), lambda b: b.context_lengths),
    "host_context_lengths": _Input(Role.PER_SEQUENCE, ("sequences",), lambda b: b.context_lengths),
    # 0 is a request in its context phase; generation, 1, never happens here.
    "host_request_types": _Input(Role.PER_SEQUENCE, ("sequences",), lambda b: np.zeros_like(b.context_lengths)),
    "padded_index": _Input(Role.PER_SEQUENCE, ("sequences", "padded"), lambda b: b.padded_index),
    "host_max_attention_window_sizes": _Input(Role.STATIC, ("layers",), constant=lambda c: c.limits.max_input_len),
    "host_sink_token_length": _Input(Role.STATIC, (1,), constant=lambda _: 0),
    # -1 leaves every performance knob at its default.
    "host_runtime_perf_knobs": _Input(Role.STATIC, (16,), constant=lambda _: -1),
    "host_context_progress": _Input(Role.STATIC, (1,), constant=lambda _: 0),
}


def _bind(tensor: TensorInfo, config: EngineConfig) -> Binding:
    limits = config.limits
    if not tensor.is_input:
        return Binding(tensor, Role.OUTPUT, (limits.max_batch_size, config.hidden_size), values=None)
    known = _INPUTS[tensor.name]
    return Binding(
        replace(tensor, location="host") if tensor.name.startswith("host_") else tensor,
        known.role,
        input_shape(
            tensor.name,
            tokens=limits.max_num_tokens,
            sequences=limits.max_batch_size,
            padded_length=padded(limits.max_input_len),
            layers=config.num_hidden_layers,
        ),
        values=known.values,
        constant=known.constant(config) if known.constant else None,
    )
