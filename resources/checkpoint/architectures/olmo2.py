"""OLMo 2: Llama with norms after each block instead of before, and over all queries and keys.

As transformers' Olmo2Model (5.24).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from resources.checkpoint.architectures.architecture import Architecture, Source, renamed
from resources.checkpoint.architectures.llama import (
    NAMES,
    llama_like,
    read_attention,
    read_layer_count,
    read_one_rotary,
)
from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.config import DecoderConfig, HeadNorms, Layer, Residual


def _read_olmo2(reader: ConfigReader) -> DecoderConfig:
    bias = reader.flag("attention_bias", False)
    attention = read_attention(reader, bias=bias, output_bias=bias)
    layer = Layer(rotary=read_one_rotary(reader, head_dim=attention.head_dim))
    config = llama_like(reader, attention=attention, layers=(layer,) * read_layer_count(reader), epsilon=1e-5)
    norm = replace(config.residual.norm, weighted_wide=True)
    return replace(
        config,
        attention=replace(attention, head_norm=norm, head_norms=HeadNorms.ALL_HEADS),
        residual=Residual(norm=norm, before=False, after=True),
    )


def _sources(config: DecoderConfig) -> Mapping[str, Source]:
    after = {"attention_output_norm": "post_attention_layernorm", "mlp_output_norm": "post_feedforward_layernorm"}
    return renamed(config, NAMES | after)


OLMO2 = Architecture(classes="Olmo2", read_config=_read_olmo2, sources=_sources)
