"""What an engine's runtime must offer, and `Engine`: the one place that keeps the order of a batch for every backend.

Contract: a backend makes single calls and decides nothing; `Engine.submit` makes them in the only right order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from resources.engine.bindings import Binding, Role, TensorInfo
from resources.engine.config import EngineConfig
from resources.engine.plugins import PluginLibrary, load_plugins
from resources.errors import EngineError
from resources.packing import PackedBatch
from resources.records import Limits


class Backend(Protocol):
    """The primitive calls of one opened plan or graph, on one stream. Failures are `EngineError`."""

    def tensors(self) -> tuple[TensorInfo, ...]:
        """Every tensor that the plan exposes."""

    def profiles(self) -> tuple[Limits, ...]:
        """What each optimisation profile can hold, the smallest first."""

    def allocate(self, bindings: tuple[Binding, ...]) -> None:
        """Every buffer, at its binding's maximum shape. Called once; a failure half-way frees what there is."""

    def use_profile(self, index: int) -> None:
        """Selects the profile of the calls that follow, and makes the device current on the calling thread."""

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """The shape of an input in this batch; or of the output, after every input's, which must be what the engine
        makes of them."""

    def bind(self, name: str) -> None:
        """Gives the engine the address of a tensor's buffer, for the shape that was set."""

    def host(self, name: str) -> np.ndarray:
        """The host array of a tensor in the shape that was set, to fill or to read; no copy."""

    def copy_in(self, name: str) -> None:
        """Starts host array -> what the engine reads, for a device-side input."""

    def execute(self) -> None:
        """Starts one forward pass."""

    def copy_out(self, name: str) -> None:
        """Starts what the engine wrote -> host array."""

    def wait(self) -> None:
        """Returns when everything that was started is complete."""

    def close(self) -> None:
        """Frees everything; a second call does nothing."""


def open_backend(
    directory: Path, config: EngineConfig, *, threads: int | None = None, plugins: Sequence[PluginLibrary] = ()
) -> Backend:
    """Opens the plan of an engine directory with the backend that its configuration names.

    `threads` are ONNX Runtime's; `plugins` are TensorRT's, loaded before the plan that uses them.
    """
    match config.backend:
        case "onnxruntime":
            from resources.engine.onnxruntime_backend import OnnxRuntimeBackend

            return OnnxRuntimeBackend(directory / config.plan, config.limits, threads=threads)
        case "tensorrt":
            from resources.engine.tensorrt_backend import TensorRtBackend

            load_plugins(plugins, directory)
            built_with = config.provenance.versions if config.provenance else {}
            return TensorRtBackend(directory / config.plan, config.limits, built_with=built_with)
    raise EngineError(
        f"the engine in {directory} is for the backend {config.backend!r}; expected onnxruntime or tensorrt; "
        "build an engine for one of them"
    )


def choose_backend() -> tuple[str, str]:
    """The backend for this machine, and why in a sentence: TensorRT where it can run, else ONNX Runtime on the CPU."""
    from resources.engine.cuda_memory import describe_device
    from resources.engine.tensorrt_versions import import_tensorrt

    try:
        version, device = import_tensorrt().__version__, describe_device()
    except EngineError as error:
        return "onnxruntime", f"onnxruntime on the CPU, since tensorrt cannot be used here: {error}"
    return "tensorrt", f"tensorrt {version} on {device.name}, rather than onnxruntime, which runs on the CPU only"


class Engine:
    """An opened engine, ready to run. Whether its vectors can be trusted is not known here.

    Owns `backend` from the first moment: a failure to allocate closes it. Not for use by two threads at once.
    """

    def __init__(self, backend: Backend, bindings: tuple[Binding, ...], config: EngineConfig) -> None:
        self._backend = backend
        self.bindings = bindings
        self.config = config
        self._inputs = [b for b in bindings if b.tensor.is_input]
        self._output = next(b.tensor.name for b in bindings if b.role is Role.OUTPUT)
        self._open = True
        self._running: object | None = None
        try:
            backend.allocate(bindings)
            self.profiles = backend.profiles()
        except BaseException:
            self.close()
            raise

    def run(self, batch: PackedBatch, *, profile: int | None = None) -> np.ndarray:
        """The gathered vectors of one batch: [n_sequences, hidden_size] in the engine's dtype, bfloat16 as uint16 bits.

        A copy, which the next batch leaves alone. Without `profile`, the first one that holds the batch runs it.
        """
        return self.submit(batch, profile=profile)()

    def submit(self, batch: PackedBatch, *, profile: int | None = None) -> Callable[[], np.ndarray]:
        """Starts a batch and gives back what waits for it and returns what `run` does, once, before the next batch."""
        self._require_open()
        if self._running is not None:
            self._finish()
        self._backend.use_profile(self._holding(batch) if profile is None else profile)
        arrays = {b.tensor.name: b.array(batch) for b in self._inputs}
        for name, array in arrays.items():
            self._backend.set_shape(name, array.shape)
        self._backend.set_shape(self._output, (batch.n_sequences, self.config.hidden_size))
        # A changed shape can leave an old address behind, which reads or writes the wrong memory without a word.
        for binding in self.bindings:
            self._backend.bind(binding.tensor.name)
        for name, array in arrays.items():
            self._backend.host(name)[...] = array
        # From the first copy on, host arrays may be read behind our back until `_finish`.
        self._running = submitted = object()
        for binding in self._inputs:
            if binding.tensor.location == "device":
                self._backend.copy_in(binding.tensor.name)
        self._backend.execute()
        self._backend.copy_out(self._output)

        def collect() -> np.ndarray:
            self._require_open()
            if self._running is not submitted:
                raise EngineError("the batch was collected already, or another one was started since; submit it again")
            self._finish()
            return self._backend.host(self._output).copy()

        return collect

    def close(self) -> None:
        """Frees everything; a second call does nothing."""
        if self._open:
            self._open = False
            self._backend.close()

    def _require_open(self) -> None:
        if not self._open:
            raise EngineError("the engine is closed; load it again")

    def _finish(self) -> None:
        self._running = None
        self._backend.wait()

    def _holding(self, batch: PackedBatch) -> int:
        longest = int(batch.context_lengths.max())
        for index, limits in enumerate(self.profiles):
            if limits.hold(sequences=batch.n_sequences, tokens=batch.n_tokens, longest=longest):
                return index
        profiles = "; or ".join(
            f"{p.max_batch_size} sequences, {p.max_num_tokens} tokens, the longest {p.max_input_len}"
            for p in self.profiles
        )
        raise EngineError(
            f"a batch of {batch.n_sequences} sequences, {batch.n_tokens} tokens, the longest {longest}, is beyond the "
            f"engine's limits: {profiles}; plan batches with resources.packing.plan and the engine's own limits"
        )
