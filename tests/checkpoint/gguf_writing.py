"""Writes a checkpoint as a GGUF file, as llama.cpp's converter does (conversion/*.py), under `gguf`'s own names."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from resources.checkpoint.source import TensorSource

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}


def write_gguf(source: TensorSource, path: Path) -> Path:
    """Writes `source` to `path`, weights as float32, without a tokenizer."""
    config = dict(source.config)
    kind = config["model_type"]
    architecture = ARCHITECTURES[kind]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _METADATA.get(kind, _usual)(writer, config)
    names = gguf.get_tensor_name_map(architecture, config.get("num_hidden_layers") or config["n_layer"])
    for name in source.shapes:
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored, name
        writer.add_tensor(stored, np.ascontiguousarray(_converted(kind, name, source.tensor(name), config)))
    for name, factors in _rotary_tensors(kind, config).items():
        writer.add_tensor(f"{gguf.TENSOR_NAMES[name]}.weight", np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _usual(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    scaling = c.get("rope_scaling") or {}
    match scaling.get("rope_type", scaling.get("type")):
        case "linear":
            w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            w.add_rope_scaling_factor(scaling["factor"])
        case "yarn":
            w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            w.add_rope_scaling_factor(scaling["factor"])
            w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if "head_dim" in c:
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    w.add_file_type(gguf.LlamaFileType.ALL_F32)


def _llama(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    _usual(w, c)
    w.add_vocab_size(c["vocab_size"])
    w.add_rope_dimension_count(_head_dim(c))


def _granite(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    _llama(w, c)
    w.add_attention_scale(c["attention_multiplier"])
    w.add_embedding_scale(c["embedding_multiplier"])
    w.add_residual_scale(c["residual_multiplier"])
    w.add_logit_scale(c["logits_scaling"])


def _gemma2(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    _usual(w, {key: value for key, value in c.items() if key != "rope_scaling"})
    w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    w.add_final_logit_softcapping(c["final_logit_softcapping"])
    w.add_sliding_window(c["sliding_window"])


def _gemma3(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    _usual(w, c)
    w.add_rope_freq_base_swa(c["rope_local_base_freq"])
    if c["sliding_window_pattern"] != 1:
        w.add_sliding_window(c["sliding_window"])
    if c["sliding_window_pattern"] not in (1, 6):
        w.add_sliding_window_pattern(c["sliding_window_pattern"])


def _gpt2(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    w.add_block_count(c["n_layer"])
    w.add_context_length(c["n_ctx"])
    w.add_embedding_length(c["n_embd"])
    w.add_feed_forward_length(4 * c["n_embd"])
    w.add_head_count(c["n_head"])
    w.add_layer_norm_eps(c["layer_norm_epsilon"])
    w.add_file_type(gguf.LlamaFileType.ALL_F32)


def _phi3(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    w.add_context_length(c["max_position_embeddings"])
    w.add_rope_scaling_orig_ctx_len(c["original_max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_dimension_count(int(c.get("partial_rotary_factor", 1.0) * c["hidden_size"]) // c["num_attention_heads"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_sliding_window(c["sliding_window"] or 0)
    if c["rope_scaling"]:
        scale, original = c["max_position_embeddings"], c["original_max_position_embeddings"]
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale / original) / math.log(original)))


_METADATA: dict[str, Callable[[gguf.GGUFWriter, dict[str, Any]], None]] = {
    "llama": _llama,
    "mistral": _llama,
    "smollm3": _llama,
    "granite": _granite,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "phi3": _phi3,
}
"""Others have no more than the usual keys."""


def _converted(kind: str, name: str, weight: np.ndarray, c: dict[str, Any]) -> np.ndarray:
    if kind in ("llama", "mistral", "granite", "smollm3") and ".self_attn." in name:
        for part, heads in (("q_proj", c["num_attention_heads"]), ("k_proj", c["num_key_value_heads"])):
            if part in name:
                halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
                return halves.swapaxes(1, 2).reshape(weight.shape)
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return weight + 1
    if kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return weight.T
    return weight


def _rotary_tensors(kind: str, c: dict[str, Any]) -> dict[gguf.MODEL_TENSOR, list[float]]:
    scaling = c.get("rope_scaling") or {}
    if kind == "phi3" and scaling:
        return {
            gguf.MODEL_TENSOR.ROPE_FACTORS_LONG: scaling["long_factor"],
            gguf.MODEL_TENSOR.ROPE_FACTORS_SHORT: scaling["short_factor"],
        }
    if scaling.get("rope_type") != "llama3":
        return {}
    factors, size = [], _head_dim(c)
    low, high, original = (
        scaling[key] for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    for frequency in c["rope_theta"] ** -(np.arange(0, size, 2) / size):
        length = 2 * math.pi / frequency
        smooth = (original / length - low) / (high - low)
        between = 1 / ((1 - smooth) / scaling["factor"] + smooth)
        factors.append(1.0 if length < original / high else scaling["factor"] if length > original / low else between)
    return {gguf.MODEL_TENSOR.ROPE_FREQS: factors}


def _head_dim(c: dict[str, Any]) -> int:
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
