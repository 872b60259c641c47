"""Phi-3, Phi-3.5 and Phi-4: Llama with fused weights, part of a head turned, and longrope.

As transformers' Phi3Model (5.24).
"""

from __future__ import annotations

from collections.abc import Mapping

from resources.checkpoint.architectures.architecture import Architecture, Source, renamed, stacked
from resources.checkpoint.architectures.llama import NAMES, llama_like, read_attention, read_layer_count
from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.architectures.rotary import THETA, read_rotary, rotary_settings
from resources.checkpoint.config import DecoderConfig, Layer, Rotary


def _read_phi3(reader: ConfigReader) -> DecoderConfig:
    for bias in ("attention_bias", "mlp_bias", "lm_head_bias"):
        reader.only(bias, False)
    # Phi-4-mini has them, and transformers does not read them.
    for key in ("full_attn_mod", "interpolate_factor"):
        reader.only(key, 1)
    attention = read_attention(reader)
    layer = Layer(
        rotary=_read_rotary(reader, head_dim=attention.head_dim),
        window=reader.optional_integer("sliding_window", None),
    )
    return llama_like(reader, attention=attention, layers=(layer,) * read_layer_count(reader), epsilon=1e-5)


def _read_rotary(reader: ConfigReader, *, head_dim: int) -> Rotary:
    settings = rotary_settings(reader)
    # In early configurations of this family "su" and "yarn" mean longrope.
    for key in ("type", "rope_type"):
        settings.only(key, "default", "longrope")
    return read_rotary(
        settings,
        head_dim=head_dim,
        theta=reader.number("rope_theta", THETA),
        fraction=reader.number("partial_rotary_factor", 1.0),
        max_positions=reader.integer("max_position_embeddings", 4096),
        original=reader.integer("original_max_position_embeddings", 4096),
    )


def _sources(config: DecoderConfig) -> Mapping[str, Source]:
    sources = renamed(config, NAMES)
    a, inner, width = config.attention, config.mlp.intermediate_size, config.hidden_size
    for i in range(config.num_hidden_layers):
        layer = f"layers.{i}"
        qkv = {
            f"{layer}.attention.q.weight": a.heads * a.head_dim,
            f"{layer}.attention.k.weight": a.groups * a.head_dim,
            f"{layer}.attention.v.weight": a.groups * a.head_dim,
        }
        gate_up = {f"{layer}.mlp.gate.weight": inner, f"{layer}.mlp.up.weight": inner}
        sources |= stacked(f"{layer}.self_attn.qkv_proj.weight", qkv, width)
        sources |= stacked(f"{layer}.mlp.gate_up_proj.weight", gate_up, width)
    return sources


PHI3 = Architecture(classes="Phi3", read_config=_read_phi3, sources=_sources)
