"""The rotary settings of a GGUF file as transformers' `rope_scaling`, `rope_theta` and `partial_rotary_factor`.

Contract: llama.cpp's meaning of each key (src/llama-model.cpp, ggml's rope) said in transformers' words, or a refusal
where the two have no word in common.
"""

from __future__ import annotations

import math
from typing import Any

from resources.checkpoint.gguf_metadata import GgufMetadata
from resources.errors import CheckpointError

FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"

ROTARY_TENSORS = (FACTORS, LONG, SHORT)
"""Tensors that are part of the configuration: what each frequency is divided by."""

THETA = 10000.0
"""llama.cpp's base where a file has none."""


def read_gguf_rotary(m: GgufMetadata, head_dim: int, max_positions: int, *, partly: bool) -> dict[str, Any]:
    """The keys of a config.json; `partly` where the family may leave part of a head unturned."""
    m.ignore("rope.scaling.finetuned")
    turned = m.value("rope.dimension_count", int, head_dim)
    if turned != head_dim and not partly:
        raise m.refusal("rope.dimension_count", f"{turned}; only the head's {head_dim} is supported")
    config: dict[str, Any] = {
        "rope_theta": m.value("rope.freq_base", float, THETA),
        "rope_scaling": _scaling(m, max_positions),
    }
    if partly:
        config["partial_rotary_factor"] = _fraction(turned, head_dim)
    return config


def _scaling(m: GgufMetadata, max_positions: int) -> dict[str, Any] | None:
    kind, factor = m.value("rope.scaling.type", str, None), m.value("rope.scaling.factor", float, None)
    factors, long, short = (m.vector(name) for name in ROTARY_TENSORS)
    if factors is not None:
        if long or short or kind not in (None, "none") or factor is not None:
            raise CheckpointError(
                f"{m.file.path} has both {FACTORS!r} and another rotary scaling; expected one of them"
            )
        # llama3's scaling comes as what each frequency is divided by, at any length.
        return _longrope(factors, factors, original=max_positions, attention_factor=1.0)
    if long is not None or short is not None:
        if long is None or short is None or kind not in (None, "longrope") or factor is not None:
            raise CheckpointError(
                f"{m.file.path} has {LONG!r} or {SHORT!r} without what belongs to it; convert it again"
            )
        original = m.value("rope.scaling.original_context_length", int)
        return _longrope(
            short, long, original=original, attention_factor=m.value("rope.scaling.attn_factor", float, 1.0)
        )
    if kind == "yarn":
        return _yarn(m)
    # A factor without a type is linear, and 0 is none.
    if kind in (None, "linear"):
        return {"rope_type": "linear", "factor": factor} if factor else None
    if kind != "none" or factor is not None:
        raise m.refusal("rope.scaling.type", f"{kind!r} with the factor {factor}, which is not handled")
    return None


def _longrope(short: list[float], long: list[float], *, original: int, attention_factor: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
        "attention_factor": attention_factor,
    }


def _yarn(m: GgufMetadata) -> dict[str, Any]:
    # transformers has other words for these, or none: they scale what the factor gives already.
    for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        m.only(f"rope.scaling.{name}", 1.0)
    return {
        "rope_type": "yarn",
        "factor": m.value("rope.scaling.factor", float),
        "original_max_position_embeddings": m.value("rope.scaling.original_context_length", int),
        "beta_fast": m.value("rope.scaling.yarn_beta_fast", float, 32.0),
        "beta_slow": m.value("rope.scaling.yarn_beta_slow", float, 1.0),
    }


def _fraction(turned: int, head_dim: int) -> float:
    """turned / head_dim, where `int(fraction * head_dim)` gives `turned` back."""
    fraction = turned / head_dim
    return fraction if int(fraction * head_dim) == turned else math.nextafter(fraction, 2)
