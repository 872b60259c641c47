"""The GPU as the TensorRT backend uses it: one stream, device buffers and pinned host buffers, through cuda-python.

Contract: every return code is checked; everything allocated is freed by `close`, which never raises. Only the CUDA
runtime API is used, so that TensorRT and this module share the device's primary context.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from resources.errors import EngineError

DEVICE = 0
"""The first GPU that CUDA_VISIBLE_DEVICES leaves visible: a process drives one."""


@dataclass
class Counts:
    """Over the whole process."""

    allocating_calls: int = 0
    """Calls that allocated device or pinned memory."""
    live: int = 0
    """Allocations that are not freed yet."""


COUNTS = Counts()


@dataclass(frozen=True)
class Device:
    """A GPU's own description."""

    name: str
    compute_capability: str
    """As in "9.0"."""


@dataclass(frozen=True)
class MemoryInfo:
    """Bytes of the device's memory."""

    free: int
    total: int


def describe_device() -> Device:
    """The GPU that this process uses; an `EngineError` says why there is none."""
    properties = _call("cudaGetDeviceProperties", DEVICE)
    name = bytes(properties.name).split(b"\0")[0].decode()
    return Device(name, f"{properties.major}.{properties.minor}")


def memory_info() -> MemoryInfo:
    """Of the device, whoever uses it."""
    return MemoryInfo(*_call("cudaMemGetInfo"))


class CudaMemory:
    """One stream and the buffers that belong to it. Not for use by two threads at once; by one after another it is."""

    def __init__(self) -> None:
        self._device: dict[str, int] = {}
        self._pinned: dict[str, int] = {}
        self._views: dict[str, np.ndarray] = {}
        self._stream: Any = None
        self.make_current()
        self._stream = _call("cudaStreamCreateWithFlags", _runtime().cudaStreamNonBlocking)

    @property
    def stream(self) -> int:
        """The stream's handle, as TensorRT takes it."""
        return int(self._stream)

    def make_current(self) -> None:
        """Makes the device's primary context current on the calling thread."""
        _call("cudaSetDevice", DEVICE)

    def allocate_device(self, name: str, size: int) -> int:
        """The address of a new device buffer of `size` bytes."""
        self._device[name] = address = _allocated("cudaMalloc", name, size)
        return address

    def allocate_pinned(self, name: str, size: int) -> int:
        """The address of a new page-locked host buffer of `size` zeroed bytes, which the device can read too."""
        self._pinned[name] = address = _allocated("cudaMallocHost", name, size)
        self._views[name] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        self._views[name][...] = 0
        return address

    def device_address(self, name: str) -> int:
        return self._device[name]

    def pinned_address(self, name: str) -> int:
        return self._pinned[name]

    def pinned_view(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The buffer's leading part as an array of `shape`, which must fit; no copy. Dead once `close` was called."""
        return self._views[name][: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def copy_in(self, name: str, size: int) -> None:
        """Starts the copy of `size` bytes from the pinned buffer to the device buffer of `name`."""
        kind = _runtime().cudaMemcpyKind.cudaMemcpyHostToDevice
        _call("cudaMemcpyAsync", self._device[name], self._pinned[name], size, kind, self._stream)

    def copy_out(self, name: str, size: int) -> None:
        """Starts the copy of `size` bytes from the device buffer to the pinned buffer of `name`."""
        kind = _runtime().cudaMemcpyKind.cudaMemcpyDeviceToHost
        _call("cudaMemcpyAsync", self._pinned[name], self._device[name], size, kind, self._stream)

    def wait(self) -> None:
        """Returns when the stream has nothing left to do; what went wrong on the device shows here."""
        _call("cudaStreamSynchronize", self._stream)

    def close(self) -> None:
        """Frees everything, whatever fails on the way; a second call does nothing."""
        if self._stream is not None:
            for call, argument in (
                ("cudaSetDevice", DEVICE),
                ("cudaStreamSynchronize", self._stream),
                ("cudaStreamDestroy", self._stream),
            ):
                _try(call, argument)
            self._stream = None
        self._views.clear()
        for call, buffers in (("cudaFree", self._device), ("cudaFreeHost", self._pinned)):
            while buffers:
                _, address = buffers.popitem()
                _try(call, address)
                COUNTS.live -= 1


def _allocated(call: str, name: str, size: int) -> int:
    try:
        address = _call(call, size)
    except EngineError as error:
        try:
            memory = memory_info()
            free = f"; {memory.free:,} of the device's {memory.total:,} bytes are free"
        except EngineError:
            free = ""
        raise EngineError(
            f"no memory for tensor {name} at its maximum shape, {size:,} bytes ({error}){free}; "
            "build the engine with smaller limits, or free the GPU"
        ) from error
    COUNTS.allocating_calls += 1
    COUNTS.live += 1
    return int(address)


def _call(name: str, *arguments: Any) -> Any:
    """One runtime call: its result, or its results as a tuple, without the error code, which must be success."""
    runtime = _runtime()
    code, *results = getattr(runtime, name)(*arguments)
    if int(code) != 0:
        # The call's own error stays behind in the thread otherwise, and a later check would report it again.
        runtime.cudaGetLastError()
        raise EngineError(f"{name} failed: {_described(code)}; load the engine again once the device is free and sound")
    return results[0] if len(results) == 1 else tuple(results)


def _try(name: str, *arguments: Any) -> None:
    """For what must go on whatever happens: after a fault on the device every call fails, also one that frees."""
    try:
        _call(name, *arguments)
    except EngineError:
        return


def _described(code: Any) -> str:
    _, text = _runtime().cudaGetErrorString(code)
    name = getattr(code, "name", str(code))
    return f"{name} ({text.decode() if isinstance(text, bytes) else text})"


def _runtime() -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise EngineError(f"cuda-python cannot be imported ({error}); install this project's extra `gpu`") from error
    return runtime
