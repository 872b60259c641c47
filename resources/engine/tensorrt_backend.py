"""TensorRT on a GPU: one execution context on one stream, no executor, nothing allocated after `allocate`.

Contract: every result of TensorRT and CUDA is checked, and a failure at any point frees everything. There is one
context, which changes its profile when a batch needs another: work comes sorted by length, so that changes are rare,
and a context for each profile would hold activations once for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from resources.engine.bindings import NUMPY_DTYPE, Binding, TensorInfo
from resources.engine.cuda_memory import CudaMemory, describe_device, memory_info
from resources.engine.tensorrt_versions import activation_bytes, checked, dtype_name, import_tensorrt, open_log
from resources.errors import EngineError
from resources.records import Limits

_MIN, _MAX = 0, 2
"""Places in a profile's shapes; the one between is what the plan was tuned for."""


class TensorRtBackend:
    """One deserialised plan."""

    def __init__(self, plan: Path, limits: Limits, *, built_with: Mapping[str, str]) -> None:
        """`built_with` names TensorRT, GPU and compute capability of the build, as far as they are known."""
        trt = import_tensorrt()
        _require_same_machine(plan, built_with, trt.__version__)
        # A device first: TensorRT 8.6 ends the process where a runtime is made without one.
        self._memory = CudaMemory()
        self._runtime: Any = None
        self._engine: Any = None
        self._context: Any = None
        self._profile = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._limits = limits
        try:
            native_log, self._log = open_log(trt)
            self._runtime = checked(self._log, "TensorRT made no runtime", trt.Runtime, native_log)
            self._engine = self._deserialise(plan, trt.__version__)
            self._tensors = {t.name: t for t in (self._describe(trt, i) for i in range(self._engine.num_io_tensors))}
        except BaseException:
            self.close()
            raise

    def tensors(self) -> tuple[TensorInfo, ...]:
        return tuple(self._tensors.values())

    def profiles(self) -> tuple[Limits, ...]:
        return tuple(self._profile_limits(i) for i in range(self._engine.num_optimization_profiles))

    def allocate(self, bindings: tuple[Binding, ...]) -> None:
        try:
            self._memory.make_current()
            self._tensors = {b.tensor.name: b.tensor for b in bindings}
            for binding in bindings:
                name, size = binding.tensor.name, _bytes(binding.tensor, binding.maximum)
                if binding.tensor.location == "device":
                    self._memory.allocate_device(name, size)
                self._memory.allocate_pinned(name, size)
            free = memory_info().free
            self._context = checked(
                self._log,
                f"TensorRT made no execution context: its activations take {activation_bytes(self._engine):,} bytes, "
                f"{free:,} are free; build the engine with smaller limits, or free the GPU",
                self._engine.create_execution_context,
            )
        except BaseException:
            self.close()
            raise

    def use_profile(self, index: int) -> None:
        self._memory.make_current()
        if index == self._profile:
            return
        checked(
            self._log,
            f"TensorRT refused profile {index} of {self._engine.num_optimization_profiles}; load the engine again",
            self._held().set_optimization_profile_async,
            index,
            self._memory.stream,
        )
        self._memory.wait()
        self._profile = index

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        context = self._held()
        if self._tensors[name].is_input:
            checked(self._log, lambda: self._misfit(name, shape), context.set_input_shape, name, shape)
        elif (seen := tuple(context.get_tensor_shape(name))) != shape:
            raise EngineError(
                f"the engine makes {name} {list(seen)} of this batch; expected {list(shape)}; "
                f"build an engine whose output follows last_token_ids{self._log.said()}"
            )
        self._shapes[name] = shape

    def bind(self, name: str) -> None:
        address = (
            self._memory.device_address if self._tensors[name].location == "device" else self._memory.pinned_address
        )
        checked(
            self._log,
            f"TensorRT refused the address of {name}; load the engine again",
            self._held().set_tensor_address,
            name,
            address(name),
        )

    def host(self, name: str) -> np.ndarray:
        self._held()
        return self._memory.pinned_view(name, self._shapes[name], NUMPY_DTYPE[self._tensors[name].dtype])

    def copy_in(self, name: str) -> None:
        self._memory.copy_in(name, _bytes(self._tensors[name], self._shapes[name]))

    def execute(self) -> None:
        checked(
            self._log,
            lambda: f"TensorRT could not run the batch {self._shapes}; load the engine again",
            self._held().execute_async_v3,
            self._memory.stream,
        )

    def copy_out(self, name: str) -> None:
        self._memory.copy_out(name, _bytes(self._tensors[name], self._shapes[name]))

    def wait(self) -> None:
        self._memory.wait()

    def close(self) -> None:
        # In this order: each is part of the one behind it, and TensorRT frees its memory when the last name goes.
        self._context = None
        self._engine = None
        self._runtime = None
        self._memory.close()

    def _misfit(self, name: str, shape: tuple[int, ...]) -> str:
        shapes = self._engine.get_tensor_profile_shape(name, self._profile)
        return (
            f"TensorRT refused {list(shape)} for the input {name}; profile {self._profile} takes {list(shapes[_MIN])} "
            f"to {list(shapes[_MAX])}; plan batches within the engine's limits, or build it for smaller ones too"
        )

    def _held(self) -> Any:
        if self._context is None:
            raise EngineError("the engine has no buffers; allocate them before the first batch")
        return self._context

    def _deserialise(self, plan: Path, version: str) -> Any:
        try:
            content = plan.read_bytes()
        except OSError as error:
            raise EngineError(f"{plan} cannot be read: {error}; expected the engine's plan; build it again") from error
        return checked(
            self._log,
            f"{plan} is no plan that TensorRT {version} can open on {_here()} ({memory_info().free:,} bytes are free); "
            "a plan serves only the version and the kind of GPU that built it: build the engine again, here",
            self._runtime.deserialize_cuda_engine,
            content,
        )

    def _describe(self, trt: Any, index: int) -> TensorInfo:
        name = self._engine.get_tensor_name(index)
        return TensorInfo(
            name,
            dtype_name(self._engine.get_tensor_dtype(name)),
            tuple(self._engine.get_tensor_shape(name)),
            is_input=self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT,
            location="host" if self._engine.get_tensor_location(name) == trt.TensorLocation.HOST else "device",
        )

    def _profile_limits(self, index: int) -> Limits:
        """What the profile can hold, and never more than the configuration allows."""

        def most(name: str, axis: int, allowed: int) -> int:
            if name not in self._tensors:
                return allowed
            return min(allowed, self._engine.get_tensor_profile_shape(name, index)[_MAX][axis])

        return Limits(
            max_batch_size=most("last_token_ids", 0, self._limits.max_batch_size),
            max_num_tokens=most("input_ids", 0, self._limits.max_num_tokens),
            max_input_len=most("padded_index", 1, self._limits.max_input_len),
        )


def _require_same_machine(plan: Path, built_with: Mapping[str, str], version: str) -> None:
    """Refuses a plan for another version or GPU in words that help; TensorRT's own differ by version."""
    device = describe_device()
    for name, seen in (("tensorrt", version), ("compute_capability", device.compute_capability)):
        if built_with.get(name, seen) != seen:
            raise EngineError(
                f"{plan} was built by TensorRT {built_with.get('tensorrt')} for {built_with.get('gpu')} (compute "
                f"capability {built_with.get('compute_capability')}); this is TensorRT {version} on {device.name} "
                f"({device.compute_capability}); build the engine again, here"
            )


def _here() -> str:
    device = describe_device()
    return f"{device.name}, compute capability {device.compute_capability}"


def _bytes(tensor: TensorInfo, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * NUMPY_DTYPE[tensor.dtype].itemsize
