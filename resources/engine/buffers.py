"""Host memory for an engine's tensors: aligned, at the maximum shape, allocated once.

Contract: `view` gives the leading part of a tensor's buffer in a batch's shape; the address never changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from resources.engine.bindings import NUMPY_DTYPE, Binding
from resources.errors import EngineError

ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector load."""


class HostBuffers:
    """One zeroed buffer per binding."""

    def __init__(self, bindings: Iterable[Binding]) -> None:
        self._buffers: dict[str, np.ndarray] = {}
        for binding in bindings:
            dtype = NUMPY_DTYPE[binding.tensor.dtype]
            elements = math.prod(binding.maximum)
            try:
                raw = np.zeros(elements * dtype.itemsize + ALIGNMENT, dtype=np.uint8)
            except MemoryError as error:
                self.close()
                raise EngineError(
                    f"no memory for tensor {binding.tensor.name} at its maximum shape {list(binding.maximum)} "
                    f"({elements * dtype.itemsize:,} bytes); build the engine with smaller limits"
                ) from error
            start = -raw.ctypes.data % ALIGNMENT
            self._buffers[binding.tensor.name] = raw[start : start + elements * dtype.itemsize].view(dtype)

    def view(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The buffer of `name` as an array of `shape`, which must fit; no copy."""
        return self._buffers[name][: math.prod(shape)].reshape(shape)

    def address(self, name: str) -> int:
        return self._buffers[name].ctypes.data

    def close(self) -> None:
        self._buffers.clear()
