"""What a decoder is, and which tensors it has: read from GGUF metadata, refused where not understood.

Contract: a metadata key of the architecture that is not read here is an error, since it may change the mathematics
(rotary scaling, sliding windows, experts); so is a tensor that no configuration calls for. Keys are llama.cpp's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from resources.checkpoint.gguf_file import GgufFile
from resources.errors import CheckpointError

SUPPORTED_ARCHITECTURES = ("llama",)

HARMLESS_PREFIXES = ("GGUF.", "general.", "tokenizer.", "quantize.")
"""Metadata that says where a file comes from, or that the tokenizer reads and judges by itself."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A causal decoder of the llama family, field names as transformers has them."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding; a token id must be below it."""
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: its name in transformers, its name in GGUF, and its shape (`nn.Linear` weights are [out, in])."""

    name: str
    gguf_name: str
    shape: tuple[int, ...]
    rotary_heads: int = 0
    """Heads whose rows the GGUF conversion permuted for rotary embedding; 0 when it did not."""


def read_config(file: GgufFile) -> DecoderConfig:
    """The configuration of `file`, after checking that every key and tensor of it is one that this project handles."""
    architecture = file.value("general.architecture", str)
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise CheckpointError(
            f"{file.path} holds the architecture {architecture!r}; supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    kind = file.value("general.type", str, "model")
    if kind != "model":
        raise CheckpointError(f"{file.path} holds a {kind!r}, not a model")
    read: set[str] = set()

    def key(name: str) -> str:
        read.add(f"{architecture}.{name}")
        return f"{architecture}.{name}"

    hidden_size = file.value(key("embedding_length"), int)
    heads = file.value(key("attention.head_count"), int)
    if hidden_size <= 0 or heads <= 0:
        raise CheckpointError(f"{file.path} has {heads} heads for a width of {hidden_size}; expected positive numbers")
    head_dim = file.value(key("attention.key_length"), int, hidden_size // heads)
    embedding = file.shapes.get("token_embd.weight", (0,))
    config = DecoderConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=file.value(key("feed_forward_length"), int),
        num_hidden_layers=file.value(key("block_count"), int),
        num_attention_heads=heads,
        num_key_value_heads=file.value(key("attention.head_count_kv"), int, heads),
        head_dim=head_dim,
        vocab_size=file.value(key("vocab_size"), int, embedding[0]),
        max_position_embeddings=file.value(key("context_length"), int),
        rms_norm_eps=file.value(key("attention.layer_norm_rms_epsilon"), float),
        rope_theta=file.value(key("rope.freq_base"), float, 10000.0),
    )
    for name in ("attention.value_length", "rope.dimension_count"):
        found = file.value(key(name), int, head_dim)
        if found != head_dim:
            raise CheckpointError(f"{key(name)!r} of {file.path} is {found}; only the head's {head_dim} is supported")
    unknown = [k for k in file.keys if k not in read and not k.startswith(HARMLESS_PREFIXES)]
    if unknown:
        raise CheckpointError(
            f"{file.path} sets {', '.join(map(repr, unknown))}, which may change the mathematics and is not handled"
        )
    _check_sizes(file, config)
    _check_tensors(file, config)
    return config


def tensor_specs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """Every tensor that the forward pass up to the final norm reads."""
    layers = (
        TensorSpec(
            f"model.layers.{i}.{name}",
            f"blk.{i}.{gguf_name}",
            shape(config),
            rotary_heads(config),
        )
        for i in range(config.num_hidden_layers)
        for name, gguf_name, shape, rotary_heads in _LAYER
    )
    embedding = TensorSpec("model.embed_tokens.weight", "token_embd.weight", (config.vocab_size, config.hidden_size))
    return embedding, *layers, TensorSpec("model.norm.weight", "output_norm.weight", (config.hidden_size,))


Shape = Callable[[DecoderConfig], tuple[int, ...]]


def _width(c: DecoderConfig) -> tuple[int, ...]:
    return (c.hidden_size,)


def _queries(c: DecoderConfig) -> tuple[int, ...]:
    return (c.num_attention_heads * c.head_dim, c.hidden_size)


def _keys(c: DecoderConfig) -> tuple[int, ...]:
    return (c.num_key_value_heads * c.head_dim, c.hidden_size)


def _attended(c: DecoderConfig) -> tuple[int, ...]:
    return (c.hidden_size, c.num_attention_heads * c.head_dim)


def _up(c: DecoderConfig) -> tuple[int, ...]:
    return (c.intermediate_size, c.hidden_size)


def _down(c: DecoderConfig) -> tuple[int, ...]:
    return (c.hidden_size, c.intermediate_size)


def _none(c: DecoderConfig) -> int:
    return 0


_LAYER: tuple[tuple[str, str, Shape, Callable[[DecoderConfig], int]], ...] = (
    ("input_layernorm.weight", "attn_norm.weight", _width, _none),
    ("self_attn.q_proj.weight", "attn_q.weight", _queries, lambda c: c.num_attention_heads),
    ("self_attn.k_proj.weight", "attn_k.weight", _keys, lambda c: c.num_key_value_heads),
    ("self_attn.v_proj.weight", "attn_v.weight", _keys, _none),
    ("self_attn.o_proj.weight", "attn_output.weight", _attended, _none),
    ("post_attention_layernorm.weight", "ffn_norm.weight", _width, _none),
    ("mlp.gate_proj.weight", "ffn_gate.weight", _up, _none),
    ("mlp.up_proj.weight", "ffn_up.weight", _up, _none),
    ("mlp.down_proj.weight", "ffn_down.weight", _down, _none),
)

_HEAD = "output.weight"
"""The language-model head: it may be there, and nothing here reads it."""


def _check_sizes(file: GgufFile, config: DecoderConfig) -> None:
    for name, value in vars(config).items():
        if not isinstance(value, str) and not 0 < value < math.inf:
            raise CheckpointError(f"{name} of {file.path} is {value}; expected a positive number")
    if config.num_hidden_layers > len(file.shapes):
        raise CheckpointError(
            f"{file.path} says that it has {config.num_hidden_layers} layers and holds {len(file.shapes)} tensors"
        )
    if config.num_attention_heads % config.num_key_value_heads:
        raise CheckpointError(
            f"{file.path} has {config.num_attention_heads} heads over {config.num_key_value_heads} key-value heads; "
            "expected a multiple"
        )
    if config.head_dim % 2:
        raise CheckpointError(f"the head size of {file.path} is {config.head_dim}; rotary embedding needs an even one")


def _check_tensors(file: GgufFile, config: DecoderConfig) -> None:
    expected = {spec.gguf_name: spec.shape for spec in tensor_specs(config)}
    for name, shape in expected.items():
        if name not in file.shapes:
            raise CheckpointError(f"{file.path} has no tensor {name!r}; expected one of shape {list(shape)}")
        if file.shapes[name] != shape:
            raise CheckpointError(
                f"{name!r} of {file.path} has shape {list(file.shapes[name])}; its configuration says {list(shape)}"
            )
    extra = sorted(file.shapes.keys() - expected.keys() - {_HEAD})
    if extra:
        raise CheckpointError(
            f"{file.path} has tensors that a {config.architecture} decoder does not use and that are not handled: "
            f"{', '.join(extra[:8])}"
        )
