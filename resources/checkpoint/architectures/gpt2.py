"""GPT-2: learned positions, layer norms, biases, a plain MLP, and weights stored [in, out].

As transformers' GPT2Model (5.24).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from resources.checkpoint.architectures.architecture import Architecture, Source, renamed
from resources.checkpoint.architectures.llama import read_activation, read_layer_count
from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.config import Attention, DecoderConfig, Embedding, Layer, Mlp, Norm, Residual

NAMES = {
    "embed_tokens": "wte",
    "embed_positions": "wpe",
    "attention_norm": "ln_1",
    "attention.o": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
    "final_norm": "ln_f",
}


def _read_gpt2(reader: ConfigReader) -> DecoderConfig:
    reader.only("scale_attn_weights", True)
    reader.only("scale_attn_by_inverse_layer_idx", False)
    # The same numbers by another order of steps; the length that training used; what earlier versions wrote.
    reader.ignore("reorder_and_upcast_attn", "n_ctx", "n_special", "predict_special_tokens", "output_past")
    hidden_size, heads = reader.integer("n_embd"), reader.integer("n_head")
    if hidden_size % heads:
        raise reader.refusal("n_head", f"a divisor of 'n_embd', {hidden_size}")
    head_dim = hidden_size // heads
    return DecoderConfig(
        architecture=reader.text("model_type"),
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        max_position_embeddings=reader.integer("n_positions"),
        embedding=Embedding(learned_positions=True),
        layers=(Layer(rotary=None),) * read_layer_count(reader, "n_layer"),
        attention=Attention(
            heads=heads, groups=heads, head_dim=head_dim, scale=head_dim**-0.5, input_bias=True, output_bias=True
        ),
        mlp=Mlp(
            intermediate_size=reader.integer("n_inner", 4 * hidden_size),
            activation=read_activation(reader, "activation_function", "gelu_new"),
            gated=False,
            bias=True,
        ),
        residual=Residual(norm=Norm(epsilon=reader.number("layer_norm_epsilon", 1e-5), centred=True)),
    )


def _sources(config: DecoderConfig) -> Mapping[str, Source]:
    sources = renamed(config, NAMES, layer="h.{}")
    width = config.hidden_size
    for name, source in sources.items():
        if name.endswith((".o.weight", ".up.weight", ".down.weight")):
            sources[name] = Source(source.name, source.shape[::-1], np.transpose)
    for i in range(config.num_hidden_layers):
        for part, name in enumerate("qkv"):
            take = _rows_of_transpose(part * width, (part + 1) * width)
            for kind, shape in (("weight", (width, 3 * width)), ("bias", (3 * width,))):
                sources[f"layers.{i}.attention.{name}.{kind}"] = Source(f"h.{i}.attn.c_attn.{kind}", shape, take)
    return sources


def _rows_of_transpose(first: int, end: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda tensor: tensor.T[first:end]


GPT2 = Architecture(
    classes="GPT2",
    read_config=_read_gpt2,
    sources=_sources,
    prefixes=("transformer.", ""),
    # The causal mask, with what it masks by.
    unread=(r".*\.attn\.(bias|masked_bias)",),
)
