"""Qwen 2, 2.5 and 3: Llama with biases or head norms, and a sliding window from some layer on.

As transformers' Qwen2Model and Qwen3Model (5.24).
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
    read_windows,
)
from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.config import Attention, DecoderConfig, Layer

GROUPS = 32
"""Key-value heads where a configuration does not say."""


def _read_qwen2(reader: ConfigReader) -> DecoderConfig:
    return _read(reader, read_attention(reader, groups=GROUPS, bias=True))


def _read_qwen3(reader: ConfigReader) -> DecoderConfig:
    bias = reader.flag("attention_bias", False)
    config = _read(reader, read_attention(reader, groups=GROUPS, head_dim=128, bias=bias, output_bias=bias))
    return replace(config, attention=replace(config.attention, head_norm=config.residual.norm))


def _read(reader: ConfigReader, attention: Attention) -> DecoderConfig:
    count = read_layer_count(reader)
    window, first = reader.optional_integer("sliding_window", 4096), reader.integer("max_window_layers", 28, least=0)
    if not reader.flag("use_sliding_window", False):
        window = None
    windows = read_windows(reader, count, window, is_sliding=lambda i: window is not None and i >= first)
    rotary = read_one_rotary(reader, head_dim=attention.head_dim)
    layers = tuple(Layer(rotary=rotary, window=window) for window in windows)
    return llama_like(reader, attention=attention, layers=layers)


QWEN2 = Architecture(classes="Qwen2", read_config=_read_qwen2, sources=llama_sources)
QWEN3 = Architecture(classes="Qwen3", read_config=_read_qwen3, sources=llama_sources)
