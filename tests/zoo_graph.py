"""The parts of a zoo engine's ONNX graph: what writes nodes, and attention over a pack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN = 16
ELEMENT = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}

Step = Callable[["Graph", str], str]


@dataclass
class Graph:
    """An ONNX graph in the making."""

    precision: str
    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def ints(self, *values: int) -> str:
        return self._keep(np.array(values, dtype=np.int64))

    def int(self, value: int) -> str:
        return self._keep(np.array(value, dtype=np.int64))

    def floats(self, values: Any) -> str:
        return self._keep(np.asarray(values, dtype=self.precision))

    def float32(self, value: float) -> str:
        return self._keep(np.array([value], dtype=np.float32))

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.floats(scale * self.random.standard_normal(shape))

    def count(self, tensor: str, axis: int = 0) -> str:
        """A dimension, as an int64 scalar."""
        return self.op("Gather", self.op("Shape", tensor), self.int(axis))

    def range(self, count: str) -> str:
        return self.op("Range", self.int(0), count, self.int(1))

    def long(self, tensor: str) -> str:
        return self.op("Cast", tensor, to=TensorProto.INT64)

    def cast(self, tensor: str) -> str:
        return self.op("Cast", tensor, to=ELEMENT[self.precision])

    def column(self, index: int) -> str:
        """One column of padded_index: 0 holds each sequence's first packed token, -1 its last."""
        return self.long(self.op("Gather", "padded_index", self.int(index), axis=1))

    def _keep(self, array: np.ndarray) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name


def attention(g: Graph, x: str, kind: str) -> str:
    """What attention adds to `x` [T, hidden].

    `kind` is "causal" (of each sequence over itself, padded inside), "window" (the same, over a token and the one
    before it), "bidirectional", "pack" (over everything), or "lengths" (causal as told by context_lengths alone).
    """
    q, k, v = (g.op("MatMul", x, g.normal(HIDDEN, HIDDEN, scale=HIDDEN**-0.5)) for _ in range(3))
    packed = kind in ("pack", "lengths")
    if packed:
        q, k, v = (g.op("Unsqueeze", t, g.ints(0)) for t in (q, k, v))
        length = g.count(x)
    else:
        q, k, v = (g.op("Gather", t, "padded_index") for t in (q, k, v))
        length = g.count("padded_index", axis=1)
    scores = g.op("Mul", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), g.floats(HIDDEN**-0.5))
    if kind != "bidirectional":
        slots = g.range(length)
        seen = g.op("GreaterOrEqual", g.op("Unsqueeze", slots, g.ints(1)), slots)
        if kind == "window":
            near = g.op("Less", g.op("Unsqueeze", slots, g.ints(1)), g.op("Add", slots, g.int(2)))
            seen = g.op("And", seen, near)
        if kind == "lengths":
            seen = g.op("And", seen, _of_one_sequence(g, slots))
        scores = g.op("Where", seen, scores, g.floats(-1e4))
    mixed = g.op("Reshape", g.op("MatMul", g.op("Softmax", scores, axis=-1), v), g.ints(-1, HIDDEN))
    if not packed:
        mixed = g.op("Gather", mixed, "packed_index")
    return g.op("MatMul", mixed, g.normal(HIDDEN, HIDDEN, scale=2 * HIDDEN**-0.5))


def _of_one_sequence(g: Graph, slots: str) -> str:
    """bool [T, T]: whether two packed tokens are of one sequence, by context_lengths."""
    sequences = g.range(g.count("context_lengths"))
    up_to = g.op("GreaterOrEqual", g.op("Unsqueeze", sequences, g.ints(1)), sequences)
    lengths = g.op("Unsqueeze", g.op("Cast", "context_lengths", to=TensorProto.FLOAT), g.ints(1))
    ends = g.op("MatMul", g.op("Cast", up_to, to=TensorProto.FLOAT), lengths)
    column = g.op("Unsqueeze", g.op("Cast", slots, to=TensorProto.FLOAT), g.ints(1))
    behind = g.op("GreaterOrEqual", column, g.op("Transpose", ends, perm=[1, 0]))
    sequence = g.op("ReduceSum", g.op("Cast", behind, to=TensorProto.FLOAT), g.ints(1), keepdims=1)
    return g.op("Equal", sequence, g.op("Transpose", sequence, perm=[1, 0]))
