"""The pieces of a decoder that look at one token at a time: projections, norms, the MLP. Each is a few ONNX primitives.

States are [T, hidden], of T packed tokens, in the graph's precision; statistics of norms are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import helper

from resources.checkpoint import Checkpoint
from resources.checkpoint.config import Activation, Norm
from resources.graph.onnx_writer import OnnxWriter


def linear(
    w: OnnxWriter, name: str, x: str, checkpoint: Checkpoint, parts: Sequence[str] = (), *, bias: bool = False
) -> str:
    """x @ weight.T + bias of the projection `name`, or of the projections `parts` side by side in one product."""

    def joined(kind: str) -> np.ndarray:
        return np.concatenate([checkpoint.tensor(f"{part}.{kind}") for part in parts or [name]])

    product = w.op("MatMul", f"{name}/product" if bias else name, x, w.weight(f"{name}.weight", joined("weight").T))
    return w.op("Add", name, product, w.weight(f"{name}.bias", joined("bias"))) if bias else product


def norm(w: OnnxWriter, name: str, x: str, checkpoint: Checkpoint, kind: Norm) -> str:
    """The norm `name` of the last axis of `x`."""
    bias = checkpoint.tensor(f"{name}.bias") if kind.centred else None
    return normalise(w, name, x, kind, checkpoint.tensor(f"{name}.weight"), bias)


def normalise(w: OnnxWriter, name: str, x: str, kind: Norm, weights: np.ndarray, bias: np.ndarray | None) -> str:
    """`norm` with a weight and bias of any shape that broadcasts to that of `x`."""
    state = to_wide(w, f"{name}/wide", x)
    if kind.centred:
        centre = w.op("ReduceMean", f"{name}/centre", state, axes=[-1], keepdims=1)
        state = w.op("Sub", f"{name}/centred", state, centre)
    if kind.centred and w.precision != np.float32:
        # ONNX Runtime 1.32 fuses a layer norm that squares by Pow, and here the fused node has types that it refuses.
        square = w.op("Mul", f"{name}/square", state, state)
    else:
        square = w.op("Pow", f"{name}/square", state, float32(w, 2.0))
    mean = w.op("ReduceMean", f"{name}/mean", square, axes=[-1], keepdims=1)
    variance = w.op("Add", f"{name}/variance", mean, float32(w, kind.epsilon))
    normed = w.op("Div", f"{name}/divided", state, w.op("Sqrt", f"{name}/root", variance))
    wide = kind.weighted_wide or kind.centred
    if not wide:
        normed = to_precision(w, f"{name}/normed", normed)
    weight = w.weight(f"{name}.weight", weights + np.float32(kind.weight_offset), wide=wide)
    last = w.op("Mul", f"{name}/weighted", normed, weight)
    if bias is not None:
        last = w.op("Add", f"{name}/biased", last, w.weight(f"{name}.bias", bias, wide=wide))
    return to_precision(w, name, last) if wide else last


def mlp(w: OnnxWriter, name: str, x: str, checkpoint: Checkpoint) -> str:
    """[T, hidden]. Gate and up stay two products: cutting a joint one costs more than it saves."""
    c = checkpoint.config.mlp
    gate = linear(w, f"{name}.gate", x, checkpoint, bias=c.bias) if c.gated else None
    up = linear(w, f"{name}.up", x, checkpoint, bias=c.bias)
    inner = _activated(w, name, up if gate is None else gate, c.activation)
    if gate is not None:
        inner = w.op("Mul", f"{name}/gated", inner, up)
    return linear(w, f"{name}.down", inner, checkpoint, bias=c.bias)


def multiplied(w: OnnxWriter, name: str, x: str, factor: float) -> str:
    """x * factor, where the factor is not rounded to the graph's precision."""
    if factor == 1:
        return x
    product = w.op("Mul", f"{name}/product", to_wide(w, f"{name}/wide", x), float32(w, factor))
    return to_precision(w, name, product)


def to_wide(w: OnnxWriter, name: str, x: str) -> str:
    """`x` in float32; a graph in float32 has no casts."""
    return _cast(w, name, x, np.dtype(np.float32))


def to_precision(w: OnnxWriter, name: str, x: str) -> str:
    """The float32 `x` in the graph's precision; a graph in float32 has no casts."""
    return _cast(w, name, x, w.precision)


def float32(w: OnnxWriter, value: float) -> str:
    return w.constant(f"float32[{value!r}]", np.array(value, dtype=np.float32))


def scalar(w: OnnxWriter, value: float) -> str:
    """A constant in the graph's precision."""
    return w.constant(f"scalar[{value!r}]", np.array(value, dtype=w.precision))


def _activated(w: OnnxWriter, name: str, x: str, kind: Activation) -> str:
    if kind is Activation.SILU:
        return w.op("Mul", f"{name}/silu", x, w.op("Sigmoid", f"{name}/sigmoid", x))
    wide = to_wide(w, f"{name}/wide", x)
    share = _gelu_tanh_share(w, name, wide) if kind is Activation.GELU_TANH else _gelu_share(w, name, wide)
    return to_precision(w, f"{name}/activated", w.op("Mul", f"{name}/gelu", wide, share))


def _gelu_share(w: OnnxWriter, name: str, x: str) -> str:
    """(1 + erf(x / sqrt(2))) / 2"""
    curved = w.op("Erf", f"{name}/erf", w.op("Mul", f"{name}/scaled", x, float32(w, 0.5**0.5)))
    return w.op("Mul", f"{name}/share", w.op("Add", f"{name}/raised", curved, float32(w, 1.0)), float32(w, 0.5))


def _gelu_tanh_share(w: OnnxWriter, name: str, x: str) -> str:
    """(1 + tanh(z)) / 2, which is sigmoid(2 z), where z is sqrt(2 / pi) * (x + 0.044715 x^3)."""
    cubic = w.op("Mul", f"{name}/cubic", w.op("Mul", f"{name}/square", x, x), float32(w, 0.044715))
    bent = w.op("Mul", f"{name}/bent", x, w.op("Add", f"{name}/raised", cubic, float32(w, 1.0)))
    return w.op("Sigmoid", f"{name}/share", w.op("Mul", f"{name}/scaled", bent, float32(w, 2 * math.sqrt(2 / math.pi))))


def _cast(w: OnnxWriter, name: str, x: str, dtype: np.dtype) -> str:
    if w.precision == np.float32:
        return x
    return w.op("Cast", name, x, to=helper.np_dtype_to_tensor_dtype(dtype))
