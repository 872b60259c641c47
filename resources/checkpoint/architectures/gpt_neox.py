"""GPT-NeoX and Pythia: layer norms, biases, a plain MLP, part of a head turned, both blocks of a layer in parallel.

As transformers' GPTNeoXModel (5.24).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from resources.checkpoint.architectures.architecture import Architecture, Source, renamed
from resources.checkpoint.architectures.llama import read_activation, read_layer_count
from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.architectures.rotary import THETA, read_rotary, require_agreement, rotary_settings
from resources.checkpoint.config import Attention, DecoderConfig, Embedding, Layer, Mlp, Norm, Residual

NAMES = {
    "embed_tokens": "embed_in",
    "attention_norm": "input_layernorm",
    "attention.o": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
    "final_norm": "final_layer_norm",
}

FRACTION = 0.25
"""Of a head, turned where a configuration does not say."""


def _read_gpt_neox(reader: ConfigReader) -> DecoderConfig:
    # Dropout, as GPT-NeoX-20B names it.
    reader.ignore("attention_probs_dropout_prob", "hidden_dropout_prob")
    hidden_size, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    if hidden_size % heads:
        raise reader.refusal("num_attention_heads", f"a divisor of 'hidden_size', {hidden_size}")
    head_dim = hidden_size // heads
    max_positions = reader.integer("max_position_embeddings")
    settings = rotary_settings(reader)
    require_agreement(reader, "rotary_emb_base", settings, "rope_theta")
    require_agreement(reader, "rotary_pct", settings, "partial_rotary_factor")
    rotary = read_rotary(
        settings,
        head_dim=head_dim,
        theta=reader.number("rotary_emb_base", THETA),
        fraction=reader.number("rotary_pct", FRACTION),
        max_positions=max_positions,
    )
    bias = reader.flag("attention_bias", True)
    return DecoderConfig(
        architecture=reader.text("model_type"),
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        max_position_embeddings=max_positions,
        embedding=Embedding(),
        layers=(Layer(rotary=rotary),) * read_layer_count(reader),
        attention=Attention(
            heads=heads, groups=heads, head_dim=head_dim, scale=head_dim**-0.5, input_bias=bias, output_bias=bias
        ),
        mlp=Mlp(
            intermediate_size=reader.integer("intermediate_size"),
            activation=read_activation(reader, default="gelu"),
            gated=False,
            bias=True,
        ),
        residual=Residual(
            norm=Norm(epsilon=reader.number("layer_norm_eps", 1e-5), centred=True),
            parallel=reader.flag("use_parallel_residual", True),
        ),
    )


def _sources(config: DecoderConfig) -> Mapping[str, Source]:
    sources = renamed(config, NAMES)
    heads, head_dim = config.attention.heads, config.attention.head_dim
    shapes = {"weight": (3 * heads * head_dim, config.hidden_size), "bias": (3 * heads * head_dim,)}
    for i in range(config.num_hidden_layers):
        for kind, shape in shapes.items():
            stored = f"layers.{i}.attention.query_key_value.{kind}"
            for part, name in enumerate("qkv"):
                sources[f"layers.{i}.attention.{name}.{kind}"] = Source(stored, shape, _of_each_head(part, heads))
    return sources


def _of_each_head(part: int, heads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Queries, keys or values of a weight that has all three of the first head, then of the second, and so on."""

    def take(fused: np.ndarray) -> np.ndarray:
        each = fused.reshape(heads, 3, -1, *fused.shape[1:])
        return each[:, part].reshape(-1, *fused.shape[1:])

    return take


GPT_NEOX = Architecture(
    classes="GPTNeoX",
    read_config=_read_gpt_neox,
    sources=_sources,
    prefixes=("gpt_neox.", ""),
    # The head; and the causal mask, with what it masks by.
    unread=(r"embed_out\.weight", r".*\.attention\.(bias|masked_bias)"),
)
