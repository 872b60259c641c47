"""Gemma 2 and 3, the text models: scaled embeddings, norms before and after each block, windows in most layers.

As transformers' Gemma2Model and Gemma3TextModel (5.24).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from resources.checkpoint.architectures.architecture import Architecture, Source, renamed
from resources.checkpoint.architectures.llama import (
    NAMES,
    llama_like,
    read_activation,
    read_attention,
    read_layer_count,
    read_one_rotary,
    read_windows,
)
from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.architectures.rotary import THETA, read_rotary, require_agreement
from resources.checkpoint.config import DecoderConfig, Embedding, Layer, Residual, Rotary
from resources.errors import CheckpointError

GLOBAL_THETA = 1_000_000.0
"""The base of Gemma 3's layers without a window, where a configuration does not say."""


def _read_gemma2(reader: ConfigReader) -> DecoderConfig:
    config = _read(reader, every=2)
    rotary = read_one_rotary(reader, head_dim=config.attention.head_dim)
    cap = reader.optional_number("attn_logit_softcapping", 50.0)
    return replace(
        config,
        attention=replace(config.attention, score_cap=cap),
        layers=tuple(replace(layer, rotary=rotary) for layer in config.layers),
    )


def _read_gemma3(reader: ConfigReader) -> DecoderConfig:
    # transformers reads the cap and does not apply it.
    reader.only("attn_logit_softcapping", None)
    reader.ignore("_sliding_window_pattern")
    config = _read(reader, every=reader.integer("sliding_window_pattern", 6))
    both, scaling = reader.nested("rope_parameters"), reader.nested("rope_scaling")
    everywhere, sliding = both.nested("full_attention"), both.nested("sliding_attention")
    if scaling.values and everywhere.values:
        raise CheckpointError(f"{reader.where} sets both 'rope_scaling' and 'rope_parameters'; leave the first one out")
    reader.only("partial_rotary_factor", 1.0, 1, None)
    require_agreement(reader, "rope_theta", everywhere, "rope_theta")
    require_agreement(reader, "rope_local_base_freq", sliding, "rope_theta")

    def rotary(settings: ConfigReader, theta: float) -> Rotary:
        settings.only("partial_rotary_factor", 1.0, 1, None)
        return read_rotary(
            settings,
            head_dim=config.attention.head_dim,
            theta=theta,
            max_positions=config.max_position_embeddings,
        )

    over_all = rotary(everywhere if everywhere.values else scaling, reader.number("rope_theta", GLOBAL_THETA))
    within_window = rotary(sliding, reader.number("rope_local_base_freq", THETA))
    return replace(
        config,
        attention=replace(config.attention, head_norm=config.residual.norm),
        layers=tuple(
            replace(layer, rotary=over_all if layer.window is None else within_window) for layer in config.layers
        ),
    )


def _read(reader: ConfigReader, *, every: int) -> DecoderConfig:
    """What both have in common, with no rotary embedding yet; one layer of `every` has no window."""
    # Gemma 2's configurations have this one beside the one that decides.
    reader.ignore("hidden_act")
    bias = reader.flag("attention_bias", False)
    attention = read_attention(reader, groups=4, head_dim=256, bias=bias, output_bias=bias)
    window = reader.integer("sliding_window", 4096)
    windows = read_windows(reader, read_layer_count(reader), window, is_sliding=lambda i: (i + 1) % every != 0)
    config = llama_like(
        reader,
        attention=replace(attention, scale=reader.number("query_pre_attn_scalar", 256) ** -0.5),
        layers=tuple(Layer(rotary=None, window=window) for window in windows),
        activation=read_activation(reader, "hidden_activation", "gelu_pytorch_tanh"),
    )
    norm = replace(config.residual.norm, weight_offset=1.0, weighted_wide=True)
    return replace(
        config,
        embedding=Embedding(multiplier=config.hidden_size**0.5),
        residual=Residual(norm=norm, before=True, after=True),
    )


def _sources(config: DecoderConfig) -> Mapping[str, Source]:
    norms = {
        "attention_output_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
    }
    return renamed(config, NAMES | norms)


GEMMA2 = Architecture(classes="Gemma2", read_config=_read_gemma2, sources=_sources)
GEMMA3 = Architecture(classes="Gemma3", read_config=_read_gemma3, sources=_sources)
