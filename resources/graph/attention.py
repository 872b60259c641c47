"""Causal attention over packed tokens: the indices and masks of a batch, and one layer's attention.

Shapes: T packed tokens, n sequences, L the padded length, H query heads over K key-value heads of size D. Only here is
anything padded: [n, L] slots, gathered before the scores and gathered back after. In half precision, head norms'
statistics, score caps and softmax are computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from resources.checkpoint import Checkpoint, DecoderConfig
from resources.checkpoint.config import Attention, HeadNorms, Layer, Rotary
from resources.graph.onnx_writer import OnnxWriter
from resources.graph.pieces import float32, linear, norm, normalise, scalar, to_precision, to_wide

MASKED = -1e30
"""Added to the score of a key that a query may not see. Finite: some TensorRT kernels turn infinities into NaN."""


@dataclass(frozen=True)
class Packing:
    """The values that depend on the batch and not on the layer, computed once."""

    last_index: str
    """int32 [n], the packed token whose state is wanted."""
    turns: Mapping[Rotary, tuple[str, str]]
    """Cosine and sine, each [T, 1, R / 2] in the graph's precision, of every rotary embedding of the decoder."""
    query_rows: str
    """int32 [n, K, H / K * L], rows of [T * (H + K), D]: the query heads of each group, padded."""
    key_rows: str
    """int32 [n, K, L], rows of [T * (H + K), D]."""
    value_rows: str
    """int32 [n, K, L], rows of [T * K, D]."""
    attended_rows: str
    """int32 [T, H], rows of [n * H * L, D]: each packed token's heads, after attention."""
    masks: Mapping[int | None, str]
    """By window, float32 [H / K * L, L]: MASKED where a query may not see a key, else 0."""


def packing(w: OnnxWriter, config: DecoderConfig) -> Packing:
    """Rotary rows, gather indices and masks of a batch."""
    heads, groups = config.attention.heads, config.attention.groups
    length = _padded_length(w)
    sequence = w.op("Div", "rows/sequence", "packed_index", length)
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
    rotaries = dict.fromkeys(layer.rotary for layer in config.layers if layer.rotary is not None)
    windows = dict.fromkeys(layer.window for layer in config.layers)
    return Packing(
        last_index=w.op("Sub", "last_index", "last_token_ids", _int32(w, 1)),
        turns={
            rotary: _turns(
                w, "rotary" if i == 0 else f"rotary_{i}", rotary, config.max_position_embeddings, sequence, length
            )
            for i, rotary in enumerate(rotaries)
        },
        query_rows=queries,
        key_rows=keys,
        value_rows=values,
        attended_rows=_attended_rows(w, sequence, length, heads),
        masks=_masks(w, length, heads // groups, tuple(windows)),
    )


def attention(w: OnnxWriter, name: str, x: str, batch: Packing, checkpoint: Checkpoint, layer: Layer) -> str:
    """Grouped-query attention of [T, hidden]: [T, H * D], before the output projection."""
    c = checkpoint.config.attention
    flat = w.integers(-1, c.head_dim)
    qk = _queries_and_keys(w, name, x, checkpoint)
    if layer.rotary is not None:
        qk = _rotated(w, f"{name}.qk", qk, batch.turns[layer.rotary], layer.rotary, c.head_dim)
    v = linear(w, f"{name}.v", x, checkpoint, bias=c.input_bias)

    qk, v = (w.op("Reshape", f"{name}.{n}/rows", x, flat) for n, x in (("qk", qk), ("v", v)))
    q = w.op("Gather", f"{name}.q/padded", qk, batch.query_rows)
    k = w.op("Gather", f"{name}.k/padded", qk, batch.key_rows)
    v = w.op("Gather", f"{name}.v/padded", v, batch.value_rows)
    if c.scale != 1:
        q = w.op("Mul", f"{name}.q/scaled", q, scalar(w, c.scale))

    # [n, K, H/K * L, D] against [n, K, D, L]: the query heads of a group share one product, and no key is repeated.
    scores = w.op("MatMul", f"{name}/scores", q, w.op("Transpose", f"{name}.k/columns", k, perm=[0, 1, 3, 2]))
    scores = _capped(w, name, to_wide(w, f"{name}/scores_wide", scores), c)
    scores = w.op("Add", f"{name}/masked", scores, batch.masks[layer.window])
    weights = to_precision(w, f"{name}/weights", w.op("Softmax", f"{name}/softmax", scores, axis=-1))
    attended = w.op("Reshape", f"{name}/attended_rows", w.op("MatMul", f"{name}/attended", weights, v), flat)
    attended = w.op("Gather", f"{name}/packed", attended, batch.attended_rows)
    return w.op("Reshape", name, attended, w.integers(0, c.heads * c.head_dim))


def _queries_and_keys(w: OnnxWriter, name: str, x: str, checkpoint: Checkpoint) -> str:
    """[T, H + K, D], normed where the decoder norms them."""
    c = checkpoint.config.attention
    if c.head_norm is not None and c.head_norms is HeadNorms.ALL_HEADS:
        q, k = (
            norm(
                w,
                f"{name}.{part}_norm",
                linear(w, f"{name}.{part}", x, checkpoint, bias=c.input_bias),
                checkpoint,
                c.head_norm,
            )
            for part in "qk"
        )
        qk = w.op("Concat", f"{name}.qk", q, k, axis=-1)
    else:
        # One product for q and k, which are rotated together: with v too, it would have to be cut.
        qk = linear(w, f"{name}.qk", x, checkpoint, [f"{name}.q", f"{name}.k"], bias=c.input_bias)
    qk = w.op("Reshape", f"{name}.qk/heads", qk, w.integers(0, c.heads + c.groups, c.head_dim))
    if c.head_norm is None or c.head_norms is HeadNorms.ALL_HEADS:
        return qk

    def rows(kind: str) -> np.ndarray:
        q, k = (checkpoint.tensor(f"{name}.{part}_norm.{kind}") for part in "qk")
        return np.concatenate([np.tile(q, (c.heads, 1)), np.tile(k, (c.groups, 1))])

    bias = rows("bias") if c.head_norm.centred else None
    return normalise(w, f"{name}.qk_norm", qk, c.head_norm, rows("weight"), bias)


def _rotated(w: OnnxWriter, name: str, x: str, turns: tuple[str, str], rotary: Rotary, size: int) -> str:
    """[T, heads, D] with its first dimensions turned by the token's position, in two halves."""
    half = len(rotary.inverse_frequencies)
    parts = {"first": half, "second": half, "still": size - 2 * half}
    first, second, *still = w.split(f"{name}/halves", x, {part: n for part, n in parts.items() if n})
    cos, sin = turns

    def turned(part: str, kind: str, left: str, right: str) -> str:
        a = w.op("Mul", f"{name}/{part}_cos", left, cos)
        b = w.op("Mul", f"{name}/{part}_sin", right, sin)
        return w.op(kind, f"{name}/{part}", a, b)

    halves = turned("first", "Sub", first, second), turned("second", "Add", second, first)
    return w.op("Concat", f"{name}/rotated", *halves, *still, axis=-1)


def _capped(w: OnnxWriter, name: str, scores: str, c: Attention) -> str:
    if c.score_cap is None:
        return scores
    cap = float32(w, c.score_cap)
    curved = w.op("Tanh", f"{name}/scores_curved", w.op("Div", f"{name}/scores_in_caps", scores, cap))
    return w.op("Mul", f"{name}/scores_capped", curved, cap)


def _padded_length(w: OnnxWriter) -> str:
    """int32 scalar L. `Shape` has no start and end here: TensorRT 8.6's parser ignores them."""
    shape = w.op("Shape", "padded_index/shape", "padded_index")
    length = w.op("Gather", "padded_index/length", shape, w.constant("axis_1", np.array(1, dtype=np.int64)))
    return w.op("Cast", "padded_length", length, to=TensorProto.INT32)


def _turns(w: OnnxWriter, name: str, rotary: Rotary, max_positions: int, sequence: str, length: str) -> tuple[str, str]:
    frequencies = [rotary.inverse_frequencies]
    rows = "position_ids"
    if rotary.long is not None:
        # The table of long sequences stands below that of short ones.
        frequencies.append(rotary.long.inverse_frequencies)
        first = _first_row_of_table(w, name, rotary.long.beyond, max_positions, sequence, length)
        rows = w.op("Add", f"{name}/rows", "position_ids", first)
    # float64 until stored: at position 8191 an angle computed in float32 is off by up to 5e-4.
    angles = np.concatenate([np.outer(np.arange(max_positions), f) for f in frequencies])
    names = []
    for part, curve in (("cos", np.cos), ("sin", np.sin)):
        table = w.weight(f"{name}/{part}_table", curve(angles) * rotary.attention_factor)
        gathered = w.op("Gather", f"{name}/{part}_rows", table, rows)
        names.append(w.op("Unsqueeze", f"{name}/{part}", gathered, w.integers(1)))
    return names[0], names[1]


def _first_row_of_table(w: OnnxWriter, name: str, beyond: int, max_positions: int, sequence: str, length: str) -> str:
    """int32 [T]: max_positions for a token of a sequence of more than `beyond` tokens, else 0."""
    # A padded slot past a sequence's end repeats its last token, so that the last slot always is it.
    last_slot = w.op("Sub", f"{name}/last_slot", length, _int32(w, 1))
    last_token = w.op("Gather", f"{name}/last_token", "padded_index", last_slot, axis=1)
    last_position = w.op("Gather", f"{name}/last_position", "position_ids", last_token)
    each = w.op("Gather", f"{name}/own_last_position", last_position, sequence)
    is_long = w.op("Greater", f"{name}/is_long", each, _int32(w, beyond - 1))
    return w.op("Where", f"{name}/first_row", is_long, _int32(w, max_positions), _int32(w, 0))


def _offset(w: OnnxWriter, name: str, rows: str, stride: int, offsets: np.ndarray) -> str:
    """rows * stride + offsets, int32."""
    scaled = w.op("Mul", f"{name}/scaled", rows, _int32(w, stride))
    return w.op("Add", name, scaled, w.constant(f"{name}/heads", offsets.astype(np.int32)))


def _attended_rows(w: OnnxWriter, sequence: str, length: str, heads: int) -> str:
    """Slot (sequence, position) of [n, L] -> rows (sequence, head, position) of [n, H, L]."""
    start = w.op("Mul", "rows/start", sequence, length)
    position = w.op("Sub", "rows/position", "packed_index", start)
    first = w.op("Add", "rows/first_head", w.op("Mul", "rows/sequence_start", start, _int32(w, heads)), position)
    head = w.op("Mul", "rows/head_start", w.constant("rows/head", np.arange(heads, dtype=np.int32)), length)
    return w.op("Add", "rows/attended", w.op("Unsqueeze", "rows/first_head_column", first, w.integers(1)), head)


def _masks(w: OnnxWriter, length: str, repeats: int, windows: tuple[int | None, ...]) -> dict[int | None, str]:
    """By window, [repeats * L, L]: the square mask once for each query head of a group."""
    positions = w.op("Range", "mask/positions", _int32(w, 0), length, _int32(w, 1))
    keys = w.op("Unsqueeze", "mask/keys", positions, w.integers(0))
    queries = w.op("Unsqueeze", "mask/queries", positions, w.integers(1))
    future = w.op("Greater", "mask/future", keys, queries)
    causal = w.op("Where", "mask/square", future, float32(w, MASKED), float32(w, 0.0))
    masks = {}
    for window in windows:
        name, mask = "mask", causal
        if window is not None:
            name = f"mask_{window}"
            since = w.op("Sub", f"{name}/since", queries, keys)
            past = w.op("Greater", f"{name}/past", since, _int32(w, window - 1))
            mask = w.op("Where", f"{name}/square", past, float32(w, MASKED), causal)
        masks[window] = mask if repeats == 1 else w.op("Concat", name, *[mask] * repeats, axis=0)
    return masks


def _int32(w: OnnxWriter, value: int) -> str:
    return w.constant(f"int32[{value}]", np.array(value, dtype=np.int32))
