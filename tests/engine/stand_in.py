"""Stand-ins for TensorRT and the CUDA runtime, for machines without a GPU: they do what the real ones do, on the CPU.

A "plan" is an ONNX graph with its profiles, which ONNX Runtime runs on the memory whose addresses the backend gave. The
rules are kept: a tensor without an address does not run, a changed profile forgets every shape, memory is freed once.
Every call is written down, and any can be made to fail: `fail["IExecutionContext.set_input_shape"] = False`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import types
import weakref
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.engine.bindings import NUMPY_DTYPE, input_shape
from resources.engine.config import FOREIGN_PLAN, write_engine_config
from resources.engine.tensorrt_build import profiles
from resources.graph import write_packed_graph
from resources.records import Limits
from tests.tiny import tiny_gguf

VERSION = "99.0"
GPU = "Stand-in GPU"
COMPUTE_CAPABILITY = "9.0"
VERSIONS = {"tensorrt": VERSION, "gpu": GPU, "compute_capability": COMPUTE_CAPABILITY}
TWO_PROFILES = Limits(max_batch_size=16, max_num_tokens=512, max_input_len=300)
NOTHING = object()
"""In `StandIn.fail`: the call gives None."""

_MAGIC = b"stand-in plan\n"


def write_plan(graph: Path, plan: Path, limits: Limits, *, layers: int = 1, on_host: tuple[str, ...] = ()) -> None:
    """What TensorRT's builder would make of `graph`: it, and its profiles. `on_host` are host tensors' names."""
    most = [[p.limits.max_batch_size, p.limits.max_num_tokens, p.limits.max_input_len] for p in profiles(limits)]
    header = {"profiles": most, "layers": layers, "on_host": on_host}
    plan.write_bytes(_MAGIC + json.dumps(header).encode() + b"\n" + onnx.load(graph).SerializeToString())


def write_two_profiles(directory: Path) -> Path:
    """A tiny checkpoint's engine in `directory`, whose limits give it two profiles."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = open_checkpoint(str(tiny_gguf(Path(folder) / "tiny.gguf")))
        write_packed_graph(checkpoint, Path(folder) / "model.onnx")
        write_plan(Path(folder) / "model.onnx", directory / FOREIGN_PLAN, TWO_PROFILES, layers=2)
        tokenizer = checkpoint.tokenizer(TokenizerPolicy())
        tokenizer.save(directory)
    write_engine_config(
        directory,
        backend="tensorrt",
        plan=FOREIGN_PLAN,
        pretrained={"dtype": "float32", "hidden_size": 64, "vocab_size": 273, "num_hidden_layers": 2},
        limits=TWO_PROFILES,
        provenance={
            "model_key": "m",
            "checkpoint_digest": "c",
            "tokenizer_id": tokenizer.tokenizer_id,
            "graph_version": "g",
            "versions": VERSIONS,
        },
    )
    return directory


@dataclass
class StandIn:
    """Both modules, and what was asked of them."""

    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    fail: dict[str, Any] = field(default_factory=dict)
    """Call -> what it gives instead of its result; an exception is raised."""
    memory: dict[int, Any] = field(default_factory=dict)
    """Address -> what is allocated there and not freed."""
    alive: Counter[str] = field(default_factory=Counter)
    """TensorRT objects that were made and not let go."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> StandIn:
        """Makes `import tensorrt` and `from cuda.bindings import runtime` find these."""
        bindings = types.ModuleType("cuda.bindings")
        bindings.runtime = _cuda(self)  # type: ignore[attr-defined]
        modules = {"tensorrt": _tensorrt(self), "cuda": types.ModuleType("cuda"), "cuda.bindings": bindings}
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        return self

    def names(self, *wanted: str) -> list[str]:
        """The calls so far, by name and first argument, those that begin with one of `wanted` if there are any."""
        said = [" ".join([name, *(a for a in arguments[:1] if isinstance(a, str))]) for name, arguments in self.calls]
        return [s for s in said if not wanted or s.startswith(wanted)]

    def record(self, call: str, arguments: tuple[Any, ...]) -> Any:
        """Writes a call down; what it must give instead of its result, or None."""
        self.calls.append((call, arguments))
        instead = self.fail.get(call)
        if isinstance(instead, Exception):
            raise type(instead)(*instead.args)
        return instead


def _cuda(stand_in: StandIn) -> types.ModuleType:
    module = types.ModuleType("cuda.bindings.runtime")
    success = 0

    def calls(name: str, body: Any) -> None:
        def call(*arguments: Any) -> tuple[Any, ...]:
            instead = stand_in.record(name, arguments)
            return (instead, None) if instead is not None else (success, *body(*arguments))

        setattr(module, name, call)

    def allocate(size: int) -> tuple[int]:
        # Poisoned, so that nothing can rely on fresh memory being zero.
        held = np.full(size, 0xA5, dtype=np.uint8)
        stand_in.memory[held.ctypes.data] = held
        return (held.ctypes.data,)

    def free(address: int) -> tuple[()]:
        del stand_in.memory[address]
        return ()

    def copy(target: int, source: int, size: int, kind: str, stream: int) -> tuple[()]:
        assert {target, source} <= set(stand_in.memory)
        assert size <= min(stand_in.memory[target].nbytes, stand_in.memory[source].nbytes)
        ctypes.memmove(target, source, size)
        return ()

    def properties(device: int) -> tuple[Any]:
        major, minor = COMPUTE_CAPABILITY.split(".")
        return (types.SimpleNamespace(name=GPU.encode() + bytes(8), major=int(major), minor=int(minor)),)

    calls("cudaSetDevice", lambda device: ())
    calls("cudaGetDeviceProperties", properties)
    calls("cudaMemGetInfo", lambda: (1 << 30, 1 << 31))
    calls("cudaStreamCreateWithFlags", lambda flags: (7,))
    calls("cudaStreamSynchronize", lambda stream: ())
    calls("cudaStreamDestroy", lambda stream: ())
    calls("cudaMalloc", allocate)
    calls("cudaMallocHost", allocate)
    calls("cudaFree", free)
    calls("cudaFreeHost", free)
    calls("cudaMemcpyAsync", copy)
    calls("cudaGetLastError", lambda: ())
    module.cudaGetErrorString = lambda code: (success, b"out of memory")  # type: ignore[attr-defined]
    module.cudaStreamNonBlocking = 1  # type: ignore[attr-defined]
    module.cudaMemcpyKind = types.SimpleNamespace(  # type: ignore[attr-defined]
        cudaMemcpyHostToDevice="in", cudaMemcpyDeviceToHost="out"
    )
    return module


class DataType(Enum):
    FLOAT = "float32"
    HALF = "float16"
    INT32 = "int32"
    INT64 = "int64"


class TensorIOMode(Enum):
    INPUT = 1
    OUTPUT = 2


class TensorLocation(Enum):
    DEVICE = 1
    HOST = 2


class ILogger:
    Severity = Enum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"])


def _tensorrt(stand_in: StandIn) -> types.ModuleType:
    module = types.ModuleType("tensorrt")

    class Runtime(_Recorded):
        def __init__(self, logger: Any) -> None:
            super().__init__(stand_in)
            self._logger = logger

        def do_deserialize_cuda_engine(self, content: bytes) -> ICudaEngine | None:
            if not content.startswith(_MAGIC):
                self._logger.log(ILogger.Severity.ERROR, "magic tag does not match")
                return None
            header, graph = content[len(_MAGIC) :].split(b"\n", 1)
            return ICudaEngine(stand_in, json.loads(header), graph)

    # Only what an engine is run with: how one is built is tested with TensorRT-RTX itself.
    for part in (DataType, TensorIOMode, TensorLocation, ILogger, Runtime):
        setattr(module, part.__name__, part)
    module.IExecutionContext = types.SimpleNamespace(execute_async_v3=None)  # type: ignore[attr-defined]
    module.__version__ = VERSION  # type: ignore[attr-defined]
    return module


class _Recorded:
    """An object whose `do_` methods can be called without that prefix, written down, and which is counted in life."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in
        stand_in.alive[type(self).__name__] += 1
        weakref.finalize(self, stand_in.alive.subtract, [type(self).__name__])

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "do_")):
            raise AttributeError(name)
        body = getattr(self, f"do_{name}")

        def call(*arguments: Any) -> Any:
            instead = self._stand_in.record(f"{type(self).__name__}.{name}", arguments)
            if instead is None:
                return body(*arguments)
            return None if instead is NOTHING else instead

        return call


class ICudaEngine(_Recorded):
    device_memory_size = 1 << 20

    def __init__(self, stand_in: StandIn, header: dict[str, Any], graph: bytes) -> None:
        import onnxruntime as ort

        super().__init__(stand_in)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        self.session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.inputs = {n.name: n for n in self.session.get_inputs()}
        self.nodes = self.inputs | {n.name: n for n in self.session.get_outputs()}
        self.num_io_tensors = len(self.nodes)
        self.num_optimization_profiles = len(header["profiles"])
        self._header = header

    def dtype_of(self, name: str) -> str:
        kind = self.nodes[name].type.removeprefix("tensor(").removesuffix(")")
        return {"float": "float32"}.get(kind, kind)

    def do_get_tensor_name(self, index: int) -> str:
        return list(self.nodes)[index]

    def do_get_tensor_dtype(self, name: str) -> DataType:
        return DataType(self.dtype_of(name))

    def do_get_tensor_shape(self, name: str) -> list[int]:
        return [d if isinstance(d, int) else -1 for d in self.nodes[name].shape]

    def do_get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def do_get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if name in self._header["on_host"] else TensorLocation.DEVICE

    def do_get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        most = self._header["profiles"][profile_index]
        return [
            input_shape(name, tokens=tokens, sequences=sequences, padded_length=length, layers=self._header["layers"])
            for sequences, tokens, length in ((1, 1, 8), most, most)
        ]

    def do_create_execution_context(self) -> IExecutionContext:
        return IExecutionContext(self._stand_in, self)


class IExecutionContext(_Recorded):
    def __init__(self, stand_in: StandIn, engine: ICudaEngine) -> None:
        super().__init__(stand_in)
        self._engine, self._profile = engine, 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def do_set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._profile = profile_index
        self._shapes.clear()
        return True

    def do_set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self._engine.do_get_tensor_profile_shape(name, self._profile)
        fits = all(a <= s <= b for a, s, b in zip(low, shape, high, strict=True))
        if fits:
            self._shapes[name] = shape
        return fits

    def do_get_tensor_shape(self, name: str) -> list[int]:
        return [self._shapes["last_token_ids"][0], self._engine.nodes[name].shape[1]]

    def do_set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def do_execute_async_v3(self, stream_handle: int) -> bool:
        if self._shapes.keys() != self._engine.inputs.keys() or self._addresses.keys() != self._engine.nodes.keys():
            return False
        fed = {name: self._array(name, shape) for name, shape in self._shapes.items()}
        [result] = self._engine.session.run(None, fed)
        self._array("hidden_states", result.shape)[...] = result
        # TensorRT keeps an address; forgetting it shows that each batch gives every one anew.
        self._addresses.clear()
        return True

    def _array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        dtype = NUMPY_DTYPE[self._engine.dtype_of(name)]
        held = self._stand_in.memory[self._addresses[name]]
        return held[: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
