"""Runs a written graph in ONNX Runtime, and measures vectors against others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from resources.packing import pack
from resources.records import GatherConvention

INPUTS = ("input_ids", "position_ids", "last_token_ids", "padded_index", "packed_index")


class Graph:
    """A graph in an ONNX Runtime session on two threads."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, sequences: Sequence[np.ndarray], last_token_ids: np.ndarray | None = None) -> np.ndarray:
        """[n, hidden] in the graph's dtype; `last_token_ids` in place of the exclusive ends."""
        return self.session.run(["hidden_states"], inputs(sequences, last_token_ids))[0]


def inputs(sequences: Sequence[np.ndarray], last_token_ids: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """What a packed graph is given; `last_token_ids` in place of the exclusive ends."""
    batch = pack(sequences, GatherConvention.EXCLUSIVE_END)
    if last_token_ids is not None:
        batch = replace(batch, last_token_ids=last_token_ids.astype(np.int32))
    return {name: getattr(batch, name) for name in INPUTS}


def relative_errors(vectors: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """|vector - expected| / |expected|, row by row, in float64."""
    vectors, expected = vectors.astype(np.float64), expected.astype(np.float64)
    return np.linalg.norm(vectors - expected, axis=-1) / np.linalg.norm(expected, axis=-1)


def cosines(vectors: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Cosine of the angle between each vector and the expected one, in float64."""
    vectors, expected = vectors.astype(np.float64), expected.astype(np.float64)
    return (vectors * expected).sum(-1) / np.linalg.norm(vectors, axis=-1) / np.linalg.norm(expected, axis=-1)
