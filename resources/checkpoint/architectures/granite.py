"""Granite 3: Llama with multipliers at the embedding, the scores and the residual.

As transformers' GraniteModel (5.24).
"""

from __future__ import annotations

from dataclasses import replace

from resources.checkpoint.architectures.architecture import Architecture
from resources.checkpoint.architectures.llama import (
    llama_like,
    llama_sources,
    read_attention,
    read_layer_count,
    read_one_rotary,
)
from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.config import DecoderConfig, Embedding, Layer


def _read_granite(reader: ConfigReader) -> DecoderConfig:
    reader.ignore("logits_scaling")
    bias = reader.flag("attention_bias", False)
    attention = read_attention(reader, bias=bias, output_bias=bias)
    layer = Layer(rotary=read_one_rotary(reader, head_dim=attention.head_dim))
    config = llama_like(
        reader,
        attention=replace(attention, scale=reader.number("attention_multiplier", 1.0)),
        layers=(layer,) * read_layer_count(reader),
        mlp_bias=reader.flag("mlp_bias", False),
    )
    return replace(
        config,
        embedding=Embedding(multiplier=reader.number("embedding_multiplier", 1.0)),
        residual=replace(config.residual, multiplier=reader.number("residual_multiplier", 1.0)),
    )


GRANITE = Architecture(classes="Granite", read_config=_read_granite, sources=llama_sources)
