"""What each layer of a graph computes: the same graph with its layers' outputs exposed, run once.

Contract: diagnosis only; no vector comes from here. Only ONNX Runtime's graphs can be opened up, since a TensorRT plan
holds no names of values inside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from resources.engine.bindings import NUMPY_DTYPE, Binding
from resources.engine.config import EngineConfig
from resources.errors import EngineError
from resources.packing import PackedBatch

LAYER_OUTPUT = re.compile(r"layers\.(\d+)/output")
"""What `resources.graph` calls the state after a layer, [num_tokens, hidden]; the last layer's is of gathered tokens
only."""


@dataclass(frozen=True)
class LayerOutput:
    """The state after one layer."""

    name: str
    values: np.ndarray
    """float [rows, hidden] in the graph's dtype."""


def layer_outputs(
    directory: Path,
    config: EngineConfig,
    bindings: Sequence[Binding],
    batch: PackedBatch,
    *,
    threads: int | None = None,
) -> tuple[LayerOutput, ...]:
    """The state after every layer for `batch`, in order; none where the backend cannot show them."""
    if config.backend != "onnxruntime":
        return ()
    import onnx
    import onnxruntime as ort
    from onnx import helper

    model = onnx.load(str(directory / config.plan), load_external_data=False)
    names = [name for node in model.graph.node for name in node.output if LAYER_OUTPUT.fullmatch(name)]
    if not names:
        return ()
    inputs = {b.tensor.name: b.array(batch).astype(NUMPY_DTYPE[b.tensor.dtype]) for b in bindings if b.tensor.is_input}
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 4
    # The graph is given as bytes, so that nothing is written beside the engine, and its weights lie there.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(directory))
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        values = session.run(names, inputs)
    except Exception as error:
        raise EngineError(
            f"ONNX Runtime could not run {directory / config.plan} layer by layer: {error}; build the engine again"
        ) from error
    return tuple(LayerOutput(name, value) for name, value in zip(names, values, strict=True))
