"""Llama 2 and 3, and Mistral: the pieces that most families share.

As transformers' LlamaModel and MistralModel (5.24).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from resources.checkpoint.architectures.architecture import Architecture, Source, renamed
from resources.checkpoint.architectures.reader import MOST_LAYERS, ConfigReader
from resources.checkpoint.architectures.rotary import THETA, read_rotary, rotary_settings
from resources.checkpoint.config import (
    Activation,
    Attention,
    DecoderConfig,
    Embedding,
    Layer,
    Mlp,
    Norm,
    Residual,
    Rotary,
)

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
"""By transformers' names."""

NAMES = {
    "embed_tokens": "embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "final_norm": "norm",
}


def llama_sources(config: DecoderConfig) -> Mapping[str, Source]:
    """Where a checkpoint in Llama's layout keeps each canonical tensor."""
    return renamed(config, NAMES)


def read_activation(reader: ConfigReader, key: str = "hidden_act", default: str = "silu") -> Activation:
    name = reader.text(key, default)
    if name not in ACTIVATIONS:
        raise reader.refusal(key, ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


def read_attention(
    reader: ConfigReader,
    *,
    groups: int | None = None,
    head_dim: int | None = None,
    bias: bool = False,
    output_bias: bool = False,
) -> Attention:
    """Heads of the usual keys; scores are divided by the square root of the head's size.

    Where the configuration has no number of key-value heads or no head size, they are `groups` and `head_dim`, or
    follow from the number of heads.
    """
    hidden_size, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    head_dim = reader.integer("head_dim", head_dim or max(1, hidden_size // heads))
    return Attention(
        heads=heads,
        groups=reader.optional_integer("num_key_value_heads", groups) or heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        input_bias=bias,
        output_bias=output_bias,
    )


def read_layer_count(reader: ConfigReader, key: str = "num_hidden_layers") -> int:
    count = reader.integer(key)
    if count > MOST_LAYERS:
        raise reader.refusal(key, f"at most {MOST_LAYERS}")
    return count


def read_windows(
    reader: ConfigReader, count: int, window: int | None, *, is_sliding: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """The window of each layer: `window` where `layer_types`, or `is_sliding` without such a list, calls it sliding."""
    kinds = reader.choices("layer_types", count, ("full_attention", "sliding_attention"))
    sliding = [is_sliding(i) for i in range(count)] if kinds is None else [k == "sliding_attention" for k in kinds]
    if window is None and any(sliding):
        raise reader.refusal("layer_types", "full attention alone, where there is no sliding window")
    return tuple(window if slides else None for slides in sliding)


def read_one_rotary(reader: ConfigReader, *, head_dim: int, theta: float = THETA) -> Rotary:
    """The rotary settings of a family whose layers share them and turn whole heads."""
    settings = rotary_settings(reader)
    for place in (reader, settings):
        place.only("partial_rotary_factor", 1.0, 1, None)
    return read_rotary(
        settings,
        head_dim=head_dim,
        theta=reader.number("rope_theta", theta),
        max_positions=reader.integer("max_position_embeddings"),
    )


def llama_like(
    reader: ConfigReader,
    *,
    attention: Attention,
    layers: tuple[Layer, ...],
    activation: Activation | None = None,
    mlp_bias: bool = False,
    epsilon: float = 1e-6,
) -> DecoderConfig:
    """A decoder of Llama's shape: RMS norms before each block, a gated MLP, no positions but the rotary ones.

    `activation` is that of `hidden_act` unless it is given; `epsilon` is that of the norms where the configuration has
    none.
    """
    return DecoderConfig(
        architecture=reader.text("model_type"),
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        max_position_embeddings=reader.integer("max_position_embeddings"),
        embedding=Embedding(),
        layers=layers,
        attention=attention,
        mlp=Mlp(
            intermediate_size=reader.integer("intermediate_size"),
            activation=activation or read_activation(reader),
            bias=mlp_bias,
        ),
        residual=Residual(norm=Norm(epsilon=reader.number("rms_norm_eps", epsilon))),
    )


def _read_llama(reader: ConfigReader) -> DecoderConfig:
    bias = reader.flag("attention_bias", False)
    attention = read_attention(reader, bias=bias, output_bias=bias)
    layer = Layer(rotary=read_one_rotary(reader, head_dim=attention.head_dim))
    layers = (layer,) * read_layer_count(reader)
    return llama_like(reader, attention=attention, layers=layers, mlp_bias=reader.flag("mlp_bias", False))


def _read_mistral(reader: ConfigReader) -> DecoderConfig:
    attention = read_attention(reader, groups=8)
    layer = Layer(
        rotary=read_one_rotary(reader, head_dim=attention.head_dim),
        window=reader.optional_integer("sliding_window", 4096),
    )
    return llama_like(reader, attention=attention, layers=(layer,) * read_layer_count(reader))


LLAMA = Architecture(classes="Llama", read_config=_read_llama, sources=llama_sources)
MISTRAL = Architecture(classes="Mistral", read_config=_read_mistral, sources=llama_sources)
