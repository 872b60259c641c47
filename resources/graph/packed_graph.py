"""The packed graph of a checkpoint: inputs, decoder, output.

Inputs, all int32, as `resources.packing.PackedBatch` fills them: `input_ids`, `position_ids` and `packed_index`
[num_tokens], `last_token_ids` [num_sequences] with exclusive ends, `padded_index` [num_sequences, padded_length].
Output: `hidden_states` [num_sequences, hidden], after the final norm, in the precision asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from resources.checkpoint import Checkpoint
from resources.errors import ConfigurationError
from resources.graph.decoder import write_decoder
from resources.graph.onnx_writer import OnnxWriter

GRAPH_VERSION = "2"
"""Part of `model_key`: raised whenever the same checkpoint may give other numbers than before."""

OPSET = 17
"""The newest whose primitives TensorRT 8.6's parser takes."""

INPUTS = {
    "input_ids": ["num_tokens"],
    "position_ids": ["num_tokens"],
    "last_token_ids": ["num_sequences"],
    "padded_index": ["num_sequences", "padded_length"],
    "packed_index": ["num_tokens"],
}

OUTPUT = "hidden_states"

Precision = Literal["float32", "float16", "bfloat16"]


def write_packed_graph(checkpoint: Checkpoint, path: Path, *, precision: Precision = "float32") -> None:
    """Writes the graph to `path` and its weights to `<path>.data`; memory stays near one layer's weights."""
    if precision not in get_args(Precision):
        raise ConfigurationError(f"precision is {precision!r}; expected one of {list(get_args(Precision))}")
    dtype = np.dtype(ml_dtypes.bfloat16 if precision == "bfloat16" else precision)
    with OnnxWriter(path, precision=dtype) as w:
        w.op("Identity", OUTPUT, write_decoder(w, checkpoint))
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, dims) for name, dims in INPUTS.items()]
        shape: list[str | int | None] = ["num_sequences", checkpoint.config.hidden_size]
        output = helper.make_tensor_value_info(OUTPUT, helper.np_dtype_to_tensor_dtype(dtype), shape)
        w.save("packed_decoder", inputs, [output], opset=OPSET)
