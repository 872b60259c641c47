"""A decoder's forward pass in plain numpy and float64, one sequence at a time: what a graph's vectors must equal.

Contract: written from `DecoderConfig` alone, and shares no code with `resources.graph`. Slow and plain on purpose:
nothing is packed, padded, fused or cached, and attention builds the whole score matrix. Memory is the embedding as it
is read, one layer's weights in float64, and what the sequences need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from resources.checkpoint import Checkpoint
from resources.checkpoint.config import Activation, Attention, DecoderConfig, HeadNorms, Layer, Mlp, Norm, Rotary


def last_states(checkpoint: Checkpoint, sequences: Sequence[np.ndarray]) -> np.ndarray:
    """The state of each sequence's last token after the final norm: float64 [n, hidden].

    `sequences` are int arrays of token ids. Each weight is read once.
    """
    c = checkpoint.config
    states = _embedded(checkpoint, sequences)
    for i, layer in enumerate(c.layers):
        weights = _Weights(checkpoint, f"layers.{i}.")
        states = [_after_layer(c, layer, weights, x) for x in states]
    weights = _Weights(checkpoint, "")
    return np.stack([_norm(x, c.residual.norm, weights, "final_norm")[-1] for x in states])


class _Weights:
    """The tensors under one prefix in float64, each read once; gone with this object."""

    def __init__(self, checkpoint: Checkpoint, prefix: str) -> None:
        self._read = cache(lambda name: checkpoint.tensor(f"{prefix}{name}").astype(np.float64))

    def __call__(self, name: str) -> np.ndarray:
        return self._read(name)

    def linear(self, x: np.ndarray, name: str, *, bias: bool) -> np.ndarray:
        y = x @ self(f"{name}.weight").T
        return y + self(f"{name}.bias") if bias else y


def _embedded(checkpoint: Checkpoint, sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
    embedding = checkpoint.config.embedding
    table = checkpoint.tensor("embed_tokens.weight")
    # Of the largest weight only the rows that are used become float64.
    states = [table[ids].astype(np.float64) * embedding.multiplier for ids in sequences]
    if embedding.learned_positions:
        positions = checkpoint.tensor("embed_positions.weight")
        states = [x + positions[: len(x)].astype(np.float64) for x in states]
    return states


def _after_layer(c: DecoderConfig, layer: Layer, weights: _Weights, x: np.ndarray) -> np.ndarray:
    r = c.residual

    def added(x: np.ndarray, block: str) -> np.ndarray:
        y = _norm(x, r.norm, weights, f"{block}_norm") if r.before else x
        y = _attention(c.attention, layer, weights, y) if block == "attention" else _mlp(c.mlp, weights, y)
        return r.multiplier * (_norm(y, r.norm, weights, f"{block}_output_norm") if r.after else y)

    if r.parallel:
        return x + added(x, "attention") + added(x, "mlp")
    x = x + added(x, "attention")
    return x + added(x, "mlp")


def _attention(a: Attention, layer: Layer, weights: _Weights, x: np.ndarray) -> np.ndarray:
    length = len(x)
    q, k, v = (weights.linear(x, f"attention.{n}", bias=a.input_bias) for n in "qkv")
    q, k = (_heads(a, weights, y, f"attention.{n}_norm") for y, n in ((q, "q"), (k, "k")))
    if layer.rotary is not None:
        q, k = _turned(q, layer.rotary), _turned(k, layer.rotary)
    v = v.reshape(length, a.groups, a.head_dim)
    k, v = (np.repeat(y, a.heads // a.groups, axis=1) for y in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * a.scale
    if a.score_cap is not None:
        scores = a.score_cap * np.tanh(scores / a.score_cap)
    behind = np.arange(length)[:, None] - np.arange(length)
    seen = (behind >= 0) & (behind < (layer.window or length))
    scores = np.where(seen, scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", shares, v).reshape(length, -1)
    return weights.linear(attended, "attention.o", bias=a.output_bias)


def _heads(a: Attention, weights: _Weights, x: np.ndarray, norm: str) -> np.ndarray:
    """[length, heads, head_dim] of flat queries or keys, normed where the decoder norms them."""
    if a.head_norm is not None and a.head_norms is HeadNorms.ALL_HEADS:
        x = _norm(x, a.head_norm, weights, norm)
    x = x.reshape(len(x), -1, a.head_dim)
    if a.head_norm is not None and a.head_norms is HeadNorms.EACH_HEAD:
        x = _norm(x, a.head_norm, weights, norm)
    return x


def _turned(x: np.ndarray, rotary: Rotary) -> np.ndarray:
    """Pairs (i, i + R/2) of each head are the real and imaginary parts of numbers that turn with the position."""
    length = len(x)
    frequencies = rotary.inverse_frequencies
    if rotary.long is not None and length > rotary.long.beyond:
        frequencies = rotary.long.inverse_frequencies
    half = len(frequencies)
    turn = rotary.attention_factor * np.exp(1j * np.outer(np.arange(length), frequencies))[:, None, :]
    numbers = (x[..., :half] + 1j * x[..., half : 2 * half]) * turn
    return np.concatenate([numbers.real, numbers.imag, x[..., 2 * half :]], axis=-1)


def _mlp(m: Mlp, weights: _Weights, x: np.ndarray) -> np.ndarray:
    up = weights.linear(x, "mlp.up", bias=m.bias)
    if not m.gated:
        return weights.linear(_activated(m.activation, up), "mlp.down", bias=m.bias)
    gate = weights.linear(x, "mlp.gate", bias=m.bias)
    return weights.linear(_activated(m.activation, gate) * up, "mlp.down", bias=m.bias)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _activated(activation: Activation, x: np.ndarray) -> np.ndarray:
    match activation:
        case Activation.SILU:
            # exp(-x) may overflow to infinity, and the quotient is then right: zero.
            with np.errstate(over="ignore"):
                return x / (1 + np.exp(-x))
        case Activation.GELU:
            return x * (1 + _erf(x / math.sqrt(2))) / 2
        case Activation.GELU_TANH:
            return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _norm(x: np.ndarray, norm: Norm, weights: _Weights, name: str) -> np.ndarray:
    if norm.centred:
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + norm.epsilon)
    x = x * (weights(f"{name}.weight") + norm.weight_offset)
    return x + weights(f"{name}.bias") if norm.centred else x
