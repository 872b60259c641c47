"""SmolLM3: Llama with some layers that have no rotary embedding, and may have a sliding window.

As transformers' SmolLM3Model (5.24).
"""

from __future__ import annotations

from resources.checkpoint.architectures.architecture import Architecture
from resources.checkpoint.architectures.llama import (
    llama_like,
    llama_sources,
    read_attention,
    read_layer_count,
    read_one_rotary,
    read_windows,
)
from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.config import DecoderConfig, Layer

THETA = 2_000_000.0
"""The base where a configuration has none."""

GROUPS = 4
"""Key-value heads where a configuration does not say."""


def _read_smollm3(reader: ConfigReader) -> DecoderConfig:
    # Qwen's; transformers does not read it here.
    reader.ignore("max_window_layers")
    bias = reader.flag("attention_bias", False)
    attention = read_attention(reader, groups=GROUPS, bias=bias, output_bias=bias)
    return llama_like(
        reader,
        attention=attention,
        layers=_read_layers(reader, head_dim=attention.head_dim),
        mlp_bias=reader.flag("mlp_bias", False),
    )


def _read_layers(reader: ConfigReader, *, head_dim: int) -> tuple[Layer, ...]:
    count, interval = read_layer_count(reader), reader.integer("no_rope_layer_interval", 4)
    turned = reader.choices("no_rope_layers", count, (0, 1)) or [(i + 1) % interval != 0 for i in range(count)]
    window = reader.optional_integer("sliding_window", None)
    if not reader.flag("use_sliding_window", False):
        window = None
    windows = read_windows(reader, count, window, is_sliding=lambda i: window is not None and not turned[i])
    rotary = read_one_rotary(reader, head_dim=head_dim, theta=THETA)
    return tuple(Layer(rotary=rotary if t else None, window=w) for t, w in zip(turned, windows, strict=True))


SMOLLM3 = Architecture(classes="SmolLM3", read_config=_read_smollm3, sources=llama_sources)
