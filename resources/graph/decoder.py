"""The pieces of a llama decoder over packed tokens, each a few ONNX primitives.

Shapes: T packed tokens, n sequences, L the padded length, H query heads over K key-value heads of size D. States are
[T, hidden]; only attention sees [n, L]. In float16, norms' statistics and softmax are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from resources.checkpoint import Checkpoint, DecoderConfig
from resources.graph.onnx_writer import OnnxWriter

MASKED = -1e30
"""Added to the score of a key that a query may not see. Finite: some TensorRT kernels turn infinities into NaN."""


@dataclass(frozen=True)
class Packing:
    """The values that depend on the batch and not on the layer, computed once."""

    last_index: str
    """int32 [n], the packed token whose state is wanted."""
    cos: str
    sin: str
    """[T, 1, D / 2] in the graph's precision."""
    query_rows: str
    """int32 [n, K, H / K * L], rows of [T * (H + K), D]: the query heads of each group, padded."""
    key_rows: str
    """int32 [n, K, L], rows of [T * (H + K), D]."""
    value_rows: str
    """int32 [n, K, L], rows of [T * K, D]."""
    attended_rows: str
    """int32 [T, H], rows of [n * H * L, D]: each packed token's heads, after attention."""
    mask: str
    """float32 [H / K * L, L]: MASKED where a query may not see a key, else 0."""


def packing(w: OnnxWriter, config: DecoderConfig) -> Packing:
    """Rotary rows, gather indices and the causal mask of a batch."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    length = _padded_length(w)
    cos, sin = _rotary_rows(w, config)
    rows = w.op("Unsqueeze", "rows/padded", "padded_index", w.integers(1))
    every = heads + groups
    keys, values = (
        _offset(w, f"rows/{name}", rows, stride, first + np.arange(groups)[:, None])
        for name, stride, first in (("keys", every, heads), ("values", groups, 0))
    )
    by_group = np.arange(heads).reshape(groups, heads // groups, 1)
    queries = w.op("Unsqueeze", "rows/padded_heads", rows, w.integers(1))
    queries = _offset(w, "rows/queries", queries, every, by_group)
    queries = w.op("Reshape", "rows/grouped_queries", queries, w.integers(0, groups, -1))
    return Packing(
        last_index=w.op("Sub", "last_index", "last_token_ids", _int32(w, 1)),
        cos=cos,
        sin=sin,
        query_rows=queries,
        key_rows=keys,
        value_rows=values,
        attended_rows=_attended_rows(w, length, heads),
        mask=_causal_mask(w, length, heads // groups),
    )


def embedding(w: OnnxWriter, checkpoint: Checkpoint) -> str:
    """[T, hidden] from `input_ids`."""
    table = w.weight("embed_tokens.weight", checkpoint.tensor("model.embed_tokens.weight"))
    return w.op("Gather", "embed_tokens", table, "input_ids")


def rms_norm(w: OnnxWriter, name: str, x: str, checkpoint: Checkpoint) -> str:
    """x / sqrt(mean(x^2) + epsilon) * weight, over the last axis."""
    wide = _cast(w, f"{name}/wide", x, np.float32)
    square = w.op("Pow", f"{name}/square", wide, _float32(w, 2.0))
    mean = w.op("ReduceMean", f"{name}/mean", square, axes=[-1], keepdims=1)
    variance = w.op("Add", f"{name}/variance", mean, _float32(w, checkpoint.config.rms_norm_eps))
    divided = w.op("Div", f"{name}/divided", wide, w.op("Sqrt", f"{name}/root", variance))
    normed = _cast(w, f"{name}/normed", divided, w.precision)
    return w.op("Mul", name, normed, w.weight(f"{name}.weight", checkpoint.tensor(f"model.{name}.weight")))


def attention(w: OnnxWriter, name: str, x: str, batch: Packing, checkpoint: Checkpoint) -> str:
    """Causal grouped-query attention of normed states: [T, H * D], before the output projection."""
    c = checkpoint.config
    heads, groups, size = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    # One product for q and k, which are rotated together, and one for v: a product for all three would have to be cut.
    qk = linear(w, f"{name}.qk_proj", x, checkpoint, [f"{name}.q_proj", f"{name}.k_proj"])
    v = linear(w, f"{name}.v_proj", x, checkpoint, [f"{name}.v_proj"])
    qk = w.op("Reshape", f"{name}.qk/heads", qk, w.integers(0, heads + groups, size))
    qk = rotary(w, f"{name}.qk", qk, batch, size)

    flat = w.integers(-1, size)
    qk, v = (w.op("Reshape", f"{name}.{n}/rows", x, flat) for n, x in (("qk", qk), ("v", v)))
    q = w.op("Gather", f"{name}.q", qk, batch.query_rows)
    k = w.op("Gather", f"{name}.k", qk, batch.key_rows)
    v = w.op("Gather", f"{name}.v", v, batch.value_rows)
    q = w.op("Mul", f"{name}.q/scaled", q, _scalar(w, size**-0.5))

    # [n, K, H/K * L, D] against [n, K, D, L]: the query heads of a group share one product, and no key is repeated.
    scores = w.op("MatMul", f"{name}/scores", q, w.op("Transpose", f"{name}.k/columns", k, perm=[0, 1, 3, 2]))
    scores = w.op("Add", f"{name}/masked", _cast(w, f"{name}/scores_wide", scores, np.float32), batch.mask)
    weights = _cast(w, f"{name}/weights", w.op("Softmax", f"{name}/softmax", scores, axis=-1), w.precision)
    attended = w.op("Reshape", f"{name}/attended_rows", w.op("MatMul", f"{name}/attended", weights, v), flat)
    attended = w.op("Gather", f"{name}/packed", attended, batch.attended_rows)
    return w.op("Reshape", name, attended, w.integers(0, heads * size))


def rotary(w: OnnxWriter, name: str, x: str, batch: Packing, size: int) -> str:
    """Rotates the halves of each head of [T, heads, D] by the token's position."""
    first, second = w.split(f"{name}/halves", x, {"first": size // 2, "second": size // 2})

    def turned(part: str, kind: str, left: str, right: str) -> str:
        a = w.op("Mul", f"{name}/{part}_cos", left, batch.cos)
        b = w.op("Mul", f"{name}/{part}_sin", right, batch.sin)
        return w.op(kind, f"{name}/{part}", a, b)

    halves = turned("first", "Sub", first, second), turned("second", "Add", second, first)
    return w.op("Concat", f"{name}/rotated", *halves, axis=-1)


def mlp(w: OnnxWriter, name: str, x: str, checkpoint: Checkpoint) -> str:
    """down(silu(gate(x)) * up(x)). Gate and up stay two products: cutting a joint one costs more than it saves."""
    gate = linear(w, f"{name}.gate_proj", x, checkpoint)
    up = linear(w, f"{name}.up_proj", x, checkpoint)
    silu = w.op("Mul", f"{name}/silu", gate, w.op("Sigmoid", f"{name}/sigmoid", gate))
    return linear(w, f"{name}.down_proj", w.op("Mul", f"{name}/gated", silu, up), checkpoint)


def linear(w: OnnxWriter, name: str, x: str, checkpoint: Checkpoint, parts: Sequence[str] = ()) -> str:
    """x @ weight.T of the projection `name`, or of the projections `parts` side by side in one product."""
    weight = np.concatenate([checkpoint.tensor(f"model.{part}.weight") for part in parts or [name]])
    return w.op("MatMul", name, x, w.weight(f"{name}.weight", weight.T))


def _padded_length(w: OnnxWriter) -> str:
    """int32 scalar L. `Shape` has no start and end here: TensorRT 8.6's parser ignores them."""
    shape = w.op("Shape", "padded_index/shape", "padded_index")
    length = w.op("Gather", "padded_index/length", shape, w.constant("axis_1", np.array(1, dtype=np.int64)))
    return w.op("Cast", "padded_length", length, to=TensorProto.INT32)


def _rotary_rows(w: OnnxWriter, config: DecoderConfig) -> tuple[str, str]:
    half = config.head_dim // 2
    # float64 until stored: at position 8191 an angle computed in float32 is off by up to 5e-4.
    angles = np.outer(np.arange(config.max_position_embeddings), config.rope_theta ** -(np.arange(half) / half))
    names = []
    for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
        rows = w.op("Gather", f"rotary/{name}_rows", w.weight(f"rotary/{name}_table", table), "position_ids")
        names.append(w.op("Unsqueeze", f"rotary/{name}", rows, w.integers(1)))
    return names[0], names[1]


def _offset(w: OnnxWriter, name: str, rows: str, stride: int, offsets: np.ndarray) -> str:
    """rows * stride + offsets, int32."""
    scaled = w.op("Mul", f"{name}/scaled", rows, _int32(w, stride))
    return w.op("Add", name, scaled, w.constant(f"{name}/heads", offsets.astype(np.int32)))


def _attended_rows(w: OnnxWriter, length: str, heads: int) -> str:
    """Slot (sequence, position) of [n, L] -> rows (sequence, head, position) of [n, H, L]."""
    sequence = w.op("Div", "rows/sequence", "packed_index", length)
    start = w.op("Mul", "rows/start", sequence, length)
    position = w.op("Sub", "rows/position", "packed_index", start)
    first = w.op("Add", "rows/first_head", w.op("Mul", "rows/sequence_start", start, _int32(w, heads)), position)
    head = w.op("Mul", "rows/head_start", w.constant("rows/head", np.arange(heads, dtype=np.int32)), length)
    return w.op("Add", "rows/attended", w.op("Unsqueeze", "rows/first_head_column", first, w.integers(1)), head)


def _causal_mask(w: OnnxWriter, length: str, repeats: int) -> str:
    """[repeats * L, L]: the square mask once for each query head of a group."""
    positions = w.op("Range", "mask/positions", _int32(w, 0), length, _int32(w, 1))
    keys = w.op("Unsqueeze", "mask/keys", positions, w.integers(0))
    queries = w.op("Unsqueeze", "mask/queries", positions, w.integers(1))
    future = w.op("Greater", "mask/future", keys, queries)
    mask = w.op("Where", "mask/square", future, _float32(w, MASKED), _float32(w, 0.0))
    return mask if repeats == 1 else w.op("Concat", "mask", *[mask] * repeats, axis=0)


def _int32(w: OnnxWriter, value: int) -> str:
    return w.constant(f"int32[{value}]", np.array(value, dtype=np.int32))


def _float32(w: OnnxWriter, value: float) -> str:
    return w.constant(f"float32[{value!r}]", np.array(value, dtype=np.float32))


def _scalar(w: OnnxWriter, value: float) -> str:
    return w.constant(f"scalar[{value!r}]", np.array(value, dtype=w.precision))


def _cast(w: OnnxWriter, name: str, x: str, dtype: np.dtype | type) -> str:
    """`x` in `dtype`, where the graph's precision is another; a graph in float32 has no casts."""
    if w.precision == np.float32:
        return x
    return w.op("Cast", name, x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
