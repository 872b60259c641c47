"""The architectures that llama.cpp's converter writes, each as what it takes to say them in transformers' words.

Contract: a file is read as transformers would have computed the model that it was converted from. What the converter
leaves out and llama.cpp has in its code (layer patterns, Gemma's score scales) is put back here; both are llama.cpp's
conversion/ and src/models/ (https://github.com/ggml-org/llama.cpp, 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from resources.checkpoint.gguf_metadata import GgufMetadata
from resources.errors import CheckpointError

Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class GgufFamily:
    """One architecture of GGUF. Modules are named as llama.cpp does, without the layer: "attn_q"."""

    model_type: str
    """transformers'."""
    finish: Callable[[GgufMetadata, Config], Config]
    """The part of a config.json that all families share -> the whole, in the names that this one has for it."""
    model: Mapping[str, str]
    """Modules of the whole model -> transformers' names."""
    layer: Mapping[str, str]
    """Modules of a layer -> transformers' names."""
    prefix: str = "model.layers.{}."
    """What transformers puts before a layer's modules."""
    layer_norm: bool = False
    """Norms are layer norms, not RMS norms."""
    rotary: bool = True
    partly_rotary: bool = False
    """Part of a head may be left unturned."""
    interleaved: tuple[str, ...] = ()
    """Modules whose rows the converter reordered within each head, so that neighbours are turned and not halves."""
    norm_offset: float = 0.0
    """What the converter added to the weights of norms."""
    transposed: tuple[str, ...] = ()
    """Modules whose weights the converter transposed."""


def _llama(m: GgufMetadata, config: Config) -> Config:
    # Biases have no key of their own.
    biases = {"attention_bias": "blk.0.attn_output.bias", "mlp_bias": "blk.0.ffn_down.bias"}
    return config | {key: tensor in m.file.shapes for key, tensor in biases.items()}


def _qwen(m: GgufMetadata, config: Config) -> Config:
    # How a model for embeddings sums its states up, which is no part of them.
    m.ignore("pooling_type")
    return config | {"use_sliding_window": False}


def _granite(m: GgufMetadata, config: Config) -> Config:
    m.ignore("logit_scale")
    return _llama(m, config) | {
        "attention_multiplier": m.value("attention.scale", float, config["head_dim"] ** -0.5),
        "embedding_multiplier": m.value("embedding_scale", float, 1.0),
        "residual_multiplier": m.value("residual_scale", float, 1.0),
    }


def _smollm3(m: GgufMetadata, config: Config) -> Config:
    return _llama(m, config) | {"no_rope_layer_interval": 4}


def _as_it_is(_: GgufMetadata, config: Config) -> Config:
    return config


def _phi3(m: GgufMetadata, config: Config) -> Config:
    # Zero is none.
    window = m.value("attention.sliding_window", int, 0)
    original = m.value("rope.scaling.original_context_length", int, config["max_position_embeddings"])
    return config | {"sliding_window": window or None, "original_max_position_embeddings": original}


def _gemma2(m: GgufMetadata, config: Config) -> Config:
    config = _gemma(m, config, layers_of_27b=46)
    window, kinds = m.value("attention.sliding_window", int, 4096), _layer_kinds(m, config, period=2)
    cap = m.value("attn_logit_softcapping", float, 50.0)
    return config | {"attn_logit_softcapping": cap, "sliding_window": window, "layer_types": kinds}


def _gemma3(m: GgufMetadata, config: Config) -> Config:
    config = _gemma(m, config, layers_of_27b=62)
    window, kinds = m.value("attention.sliding_window", int, 0), _layer_kinds(m, config, period=6)
    local = m.value("rope.freq_base_swa", float, 10000.0)
    config |= {"rope_local_base_freq": local}
    if not window:
        return config | {"layer_types": ["full_attention"] * len(kinds)}
    return config | {"sliding_window": window, "layer_types": kinds}


def _gemma(m: GgufMetadata, config: Config, *, layers_of_27b: int) -> Config:
    m.ignore("final_logit_softcapping")
    whole = config["num_hidden_layers"] == layers_of_27b
    scalar = config["hidden_size"] // config["num_attention_heads"] if whole else config["head_dim"]
    return config | {"query_pre_attn_scalar": scalar, "hidden_activation": "gelu_pytorch_tanh"}


def _gpt2(m: GgufMetadata, config: Config) -> Config:
    heads, width = config["num_attention_heads"], config["hidden_size"]
    if (config["num_key_value_heads"], config["head_dim"] * heads) != (heads, width):
        raise CheckpointError(
            f"{m.file.path} has {heads} query heads of {config['head_dim']} over {config['num_key_value_heads']} of "
            f"keys; a gpt2 decoder has as many of each, which share its width of {width}"
        )
    names = {
        "model_type": "model_type",
        "vocab_size": "vocab_size",
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    return {name: config[key] for key, name in names.items()} | {"activation_function": "gelu_new"}


def _layer_kinds(m: GgufMetadata, config: Config, *, period: int) -> list[str]:
    """Every `period`-th layer sees all; newer files say which ones, or another period."""
    name, count = "attention.sliding_window_pattern", config["num_hidden_layers"]
    found = m.periods(name)
    if type(found) is list and len(found) == count and all(type(flag) is bool for flag in found):
        local = found
    elif found is None or (type(found) is int and found > 0):
        local = [(i + 1) % (found or period) != 0 for i in range(count)]
    else:
        raise m.refusal(name, f"{str(found)[:80]}; expected a period, or a flag for each of {count} layers")
    return ["sliding_attention" if flag else "full_attention" for flag in local]


_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

_OUTPUT_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}

_GEMMA = _LAYER | _OUTPUT_NORMS | {"ffn_norm": "pre_feedforward_layernorm"}

_Q_AND_K = ("attn_q", "attn_k")

GGUF_FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(model_type="llama", finish=_llama, model=_MODEL, layer=_LAYER, interleaved=_Q_AND_K),
    "qwen2": GgufFamily(model_type="qwen2", finish=_qwen, model=_MODEL, layer=_LAYER),
    "qwen3": GgufFamily(model_type="qwen3", finish=_qwen, model=_MODEL, layer=_LAYER | _HEAD_NORMS),
    "gemma2": GgufFamily(model_type="gemma2", finish=_gemma2, model=_MODEL, layer=_GEMMA, norm_offset=1.0),
    "gemma3": GgufFamily(
        model_type="gemma3_text", finish=_gemma3, model=_MODEL, layer=_GEMMA | _HEAD_NORMS, norm_offset=1.0
    ),
    "gpt2": GgufFamily(
        model_type="gpt2",
        finish=_gpt2,
        model={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        layer={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        prefix="transformer.h.{}.",
        layer_norm=True,
        rotary=False,
        transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    ),
    "phi3": GgufFamily(
        model_type="phi3",
        finish=_phi3,
        model=_MODEL,
        layer=_LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        partly_rotary=True,
    ),
    "olmo2": GgufFamily(model_type="olmo2", finish=_as_it_is, model=_MODEL, layer=_LAYER | _HEAD_NORMS | _OUTPUT_NORMS),
    "granite": GgufFamily(model_type="granite", finish=_granite, model=_MODEL, layer=_LAYER, interleaved=_Q_AND_K),
    "smollm3": GgufFamily(model_type="smollm3", finish=_smollm3, model=_MODEL, layer=_LAYER, interleaved=_Q_AND_K),
}
"""By llama.cpp's `general.architecture`."""
