"""What a decoder computes, as declarative pieces of no particular family, and the canonical tensors that it reads.

Contract: a `DecoderConfig` says everything that decides the numbers, apart from the weights; whoever reads a format
fills it, and `resources.graph` writes it as a graph. A state is a row of `hidden_size` values, one for each token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """table[token], times `multiplier`, plus positions[position] where they are learned."""

    multiplier: float = 1.0
    """Rounded to the graph's precision before it is used, as transformers does."""
    learned_positions: bool = False


@dataclass(frozen=True, kw_only=True)
class Norm:
    """x / sqrt(mean(x^2) + epsilon) * (weight + weight_offset), over the last axis and with float32 statistics."""

    epsilon: float
    centred: bool = False
    """Layer norm: x less its mean takes the place of x, and a bias is added last; weighted wide."""
    weight_offset: float = 0.0
    """Added to the stored weight, in float32."""
    weighted_wide: bool = False
    """The weight multiplies in float32, before x is rounded to the graph's precision and not after."""


@dataclass(frozen=True, kw_only=True)
class LongRotary:
    """The frequencies of a whole sequence that is longer than `beyond` tokens."""

    beyond: int
    inverse_frequencies: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Turns dimensions i and i + R/2 of a head's first R by position * inverse_frequencies[i] radians, i < R/2.

    All scaling is in the frequencies already (`architectures.rotary`). The other dimensions of the head stay.
    """

    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    """Multiplies cosine and sine."""
    long: LongRotary | None = None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What may differ from layer to layer."""

    rotary: Rotary | None
    window: int | None = None
    """A query sees this many keys, its own with them; None is every key up to its own."""


class HeadNorms(Enum):
    """What a norm of queries and keys is taken over."""

    EACH_HEAD = "each head"
    ALL_HEADS = "all heads"


@dataclass(frozen=True, kw_only=True)
class Attention:
    """softmax(cap(q k^T * scale)) v, causal, over `heads` query heads that share `groups` key-value heads."""

    heads: int
    groups: int
    head_dim: int
    scale: float
    input_bias: bool = False
    """Of q, k and v."""
    output_bias: bool = False
    head_norm: Norm | None = None
    """Of q and of k, before the rotary turn, each with a weight of its own."""
    head_norms: HeadNorms = HeadNorms.EACH_HEAD
    score_cap: float | None = None
    """cap(s) is score_cap * tanh(s / score_cap)."""


class Activation(Enum):
    """What it is called here; transformers' names for them are in `architectures.llama`."""

    SILU = "silu"
    """x * sigmoid(x)"""
    GELU = "gelu"
    """x * (1 + erf(x / sqrt(2))) / 2"""
    GELU_TANH = "gelu tanh"
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2"""


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate."""

    intermediate_size: int
    activation: Activation
    gated: bool = True
    bias: bool = False
    """Of every projection."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """How a layer adds what attention and MLP make to the state: x + multiplier * after(block(before(x))), twice.

    In `parallel` both blocks read the layer's own x, and both are added to it.
    """

    norm: Norm
    """Every norm of a layer, and the final one."""
    before: bool = True
    after: bool = False
    parallel: bool = False
    multiplier: float = 1.0


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A causal decoder: embedding, layers, final norm."""

    architecture: str
    """transformers' `model_type`."""
    vocab_size: int
    """Rows of the embedding; a token id must be below it."""
    hidden_size: int
    max_position_embeddings: int
    """The longest sequence whose positions the decoder has, as this project can compute them."""
    embedding: Embedding
    layers: tuple[Layer, ...]
    attention: Attention
    mlp: Mlp
    residual: Residual

    @property
    def reach(self) -> int | None:
        """How many tokens back a vector can depend on, its own with them; None where a layer sees every token."""
        seen = [layer.window - 1 for layer in self.layers if layer.window is not None]
        return 1 + sum(seen) if len(seen) == len(self.layers) else None

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)

    @property
    def num_attention_heads(self) -> int:
        return self.attention.heads


@dataclass(frozen=True)
class TensorSpec:
    """A canonical tensor. A projection's weight is [out, in], as of `nn.Linear`."""

    name: str
    shape: tuple[int, ...]


def tensor_specs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """Every tensor that the forward pass up to the final norm reads."""
    return tuple(TensorSpec(name, shape) for name, shape in _tensors(config))


def _tensors(c: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "embed_tokens.weight", (c.vocab_size, c.hidden_size)
    if c.embedding.learned_positions:
        yield "embed_positions.weight", (c.max_position_embeddings, c.hidden_size)
    for i in range(c.num_hidden_layers):
        for name, shape in _layer_tensors(c):
            yield f"layers.{i}.{name}", shape
    yield from _norm("final_norm", c.residual.norm, c.hidden_size)


def _layer_tensors(c: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    a, m, r = c.attention, c.mlp, c.residual
    queries, keys = a.heads * a.head_dim, a.groups * a.head_dim
    for block in ("attention", "mlp"):
        if r.before:
            yield from _norm(f"{block}_norm", r.norm, c.hidden_size)
        if r.after:
            yield from _norm(f"{block}_output_norm", r.norm, c.hidden_size)
    yield from _projection("attention.q", queries, c.hidden_size, a.input_bias)
    yield from _projection("attention.k", keys, c.hidden_size, a.input_bias)
    yield from _projection("attention.v", keys, c.hidden_size, a.input_bias)
    yield from _projection("attention.o", c.hidden_size, queries, a.output_bias)
    if a.head_norm is not None:
        each = a.head_norms is HeadNorms.EACH_HEAD
        yield from _norm("attention.q_norm", a.head_norm, a.head_dim if each else queries)
        yield from _norm("attention.k_norm", a.head_norm, a.head_dim if each else keys)
    if m.gated:
        yield from _projection("mlp.gate", m.intermediate_size, c.hidden_size, m.bias)
    yield from _projection("mlp.up", m.intermediate_size, c.hidden_size, m.bias)
    yield from _projection("mlp.down", c.hidden_size, m.intermediate_size, m.bias)


def _norm(name: str, norm: Norm, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (width,)
    if norm.centred:
        yield f"{name}.bias", (width,)


def _projection(name: str, rows: int, columns: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)
