"""ONNX Runtime on the CPU: raw buffer addresses through IOBinding, nothing allocated by us per batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from resources.engine.bindings import NUMPY_DTYPE, Binding, TensorInfo
from resources.engine.buffers import HostBuffers
from resources.errors import EngineError
from resources.records import Limits

_DTYPE = {
    f"tensor({onnx_name})": name
    for onnx_name, name in {
        "float": "float32",
        "float16": "float16",
        "bfloat16": "bfloat16",
        "int32": "int32",
        "int64": "int64",
    }.items()
}
_ONNX_BFLOAT16 = 16
"""TensorProto.BFLOAT16; numpy has no such type to name it by."""
_LOG_FATAL = 4


class OnnxRuntimeBackend:
    """One session over one graph. Host memory is what the engine reads and writes, so the copies have nothing to do."""

    def __init__(self, graph: Path, limits: Limits, *, threads: int | None = None) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.inter_op_num_threads = 1
        options.log_severity_level = _LOG_FATAL
        # Patterns are kept per set of shapes, and here the shapes change with every batch.
        options.enable_mem_pattern = False
        if not graph.is_file():
            raise EngineError(f"{graph} is missing; expected the engine's ONNX graph; build the engine again")
        try:
            self._session: Any = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise EngineError(
                f"{graph} cannot be opened by ONNX Runtime {ort.__version__}: {error}; build the engine again"
            ) from error
        self._limits = limits
        self._binding: Any = self._session.io_binding()
        self._buffers: HostBuffers | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._tensors = {t.name: t for t in self.tensors()}

    def tensors(self) -> tuple[TensorInfo, ...]:
        return tuple(
            TensorInfo(
                node.name,
                _DTYPE.get(node.type, node.type),
                tuple(d if isinstance(d, int) else -1 for d in node.shape),
                is_input,
            )
            for nodes, is_input in ((self._session.get_inputs(), True), (self._session.get_outputs(), False))
            for node in nodes
        )

    def profiles(self) -> tuple[Limits, ...]:
        return (self._limits,)

    def allocate(self, bindings: tuple[Binding, ...]) -> None:
        self._buffers = HostBuffers(bindings)

    def use_profile(self, index: int) -> None:
        if index != 0:
            raise EngineError(f"profile {index} was asked for; an ONNX Runtime engine has one, 0")

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        self._shapes[name] = shape

    def bind(self, name: str) -> None:
        tensor = self._tensors[name]
        attach = self._binding.bind_input if tensor.is_input else self._binding.bind_output
        element = _ONNX_BFLOAT16 if tensor.dtype == "bfloat16" else NUMPY_DTYPE[tensor.dtype]
        attach(name, "cpu", 0, element, self._shapes[name], self._held().address(name))

    def host(self, name: str) -> np.ndarray:
        return self._held().view(name, self._shapes[name])

    def copy_in(self, name: str) -> None:
        """Nothing to do: the engine reads the host array."""

    def execute(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise EngineError(
                f"ONNX Runtime could not run the batch: {error}; free memory, or build with smaller limits"
            ) from error

    def copy_out(self, name: str) -> None:
        """Nothing to do: the engine wrote the host array."""

    def wait(self) -> None:
        """Nothing to do: a pass is complete when `execute` returns."""

    def close(self) -> None:
        self._binding = self._session = None
        if self._buffers is not None:
            self._buffers.close()
            self._buffers = None

    def _held(self) -> HostBuffers:
        if self._buffers is None:
            raise EngineError("the engine has no buffers; allocate them before the first batch")
        return self._buffers
