"""A GGUF file in transformers' words: its metadata as a config.json, its tensors under transformers' names.

Contract: a metadata key of the architecture that is not read here is an error, since it may change the mathematics
(rotary scaling, sliding windows, experts). What llama.cpp's conversion did to a weight is undone. Keys are llama.cpp's.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from resources.checkpoint.gguf_file import GgufFile
from resources.errors import CheckpointError
from resources.records import file_digest

SUPPORTED_ARCHITECTURES = ("llama",)

HARMLESS_PREFIXES = ("GGUF.", "general.", "tokenizer.", "quantize.")
"""Metadata that says where a file comes from, or that the tokenizer reads and judges by itself."""

_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
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


class GgufModel:
    """The model of one GGUF file: a `TensorSource`."""

    def __init__(self, path: Path, *, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.stem
        self.file = GgufFile(path)
        self.config = _config(self.file)
        self._stored = {_transformers_name(stored): stored for stored in self.file.shapes}
        self.shapes = {name: self.file.shapes[stored] for name, stored in self._stored.items()}

    @cached_property
    def digest(self) -> str:
        """xxh3-128, hex, of the file's bytes."""
        return file_digest(self.path)

    def tensor(self, name: str) -> np.ndarray:
        """float32, dequantised now."""
        weight = self.file.tensor(self._stored[name])
        if name.endswith("q_proj.weight"):
            return _halves(weight, self.config["num_attention_heads"])
        if name.endswith("k_proj.weight"):
            return _halves(weight, self.config["num_key_value_heads"])
        return weight


def _config(file: GgufFile) -> dict[str, Any]:
    architecture = file.value("general.architecture", str)
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise CheckpointError(
            f"{file.path} holds the architecture {architecture!r}; supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    kind = file.value("general.type", str, "model")
    if kind != "model":
        raise CheckpointError(f"{file.path} holds a {kind!r}, not a model")
    read: set[str] = set()

    def key(name: str) -> str:
        read.add(f"{architecture}.{name}")
        return f"{architecture}.{name}"

    hidden_size = file.value(key("embedding_length"), int)
    heads = file.value(key("attention.head_count"), int)
    head_dim = file.value(key("attention.key_length"), int, hidden_size // max(heads, 1))
    config = {
        "model_type": architecture,
        "hidden_size": hidden_size,
        "intermediate_size": file.value(key("feed_forward_length"), int),
        "num_hidden_layers": file.value(key("block_count"), int),
        "num_attention_heads": heads,
        "num_key_value_heads": file.value(key("attention.head_count_kv"), int, heads),
        "head_dim": head_dim,
        "vocab_size": file.value(key("vocab_size"), int, file.shapes.get("token_embd.weight", (0,))[0]),
        "max_position_embeddings": file.value(key("context_length"), int),
        "rms_norm_eps": file.value(key("attention.layer_norm_rms_epsilon"), float),
        "rope_theta": file.value(key("rope.freq_base"), float, 10000.0),
    }
    for name in ("attention.value_length", "rope.dimension_count"):
        found = file.value(key(name), int, head_dim)
        if found != head_dim:
            raise CheckpointError(f"{key(name)!r} of {file.path} is {found}; only the head's {head_dim} is supported")
    unknown = [k for k in file.keys if k not in read and not k.startswith(HARMLESS_PREFIXES)]
    if unknown:
        raise CheckpointError(
            f"{file.path} sets {', '.join(map(repr, unknown))}, which may change the mathematics and is not handled"
        )
    return config


def _transformers_name(stored: str) -> str:
    """A tensor that transformers has no name for keeps its own."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(\w+)", stored)
    index, module, kind = match.groups() if match else (None, "", "")
    if index is None:
        return f"{_MODEL[module]}.{kind}" if module in _MODEL else stored
    return f"model.layers.{index}.{_LAYER[module]}.{kind}" if module in _LAYER else stored


def _halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the permutation that llama.cpp's conversion applies to the rows of q and k.

    It stores the two halves of a head interleaved (rotary over neighbouring pairs); transformers rotates halves.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)
