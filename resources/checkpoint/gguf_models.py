"""A GGUF file in transformers' words: its metadata as a config.json, its tensors under transformers' names.

Contract: what the architecture files judge of a config.json they judge of a GGUF file too; a metadata key that is not
taken here is an error. What llama.cpp's conversion did to a weight is undone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from resources.checkpoint.gguf_families import GGUF_FAMILIES, GgufFamily
from resources.checkpoint.gguf_file import GgufFile
from resources.checkpoint.gguf_metadata import GgufMetadata
from resources.checkpoint.gguf_rotary import ROTARY_TENSORS, read_gguf_rotary
from resources.checkpoint.unchanged import Unchanged
from resources.errors import CheckpointError


class GgufModel:
    """The model of one GGUF file: a `TensorSource`."""

    def __init__(self, path: Path, *, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.stem
        self._unchanged = Unchanged()
        self._unchanged.watch(path)
        self.file = GgufFile(path)
        self._family, self.config = _read(self.file)
        self._stored = {_transformers_name(stored, self._family): stored for stored in self.file.shapes}
        if self._family.rotary:
            self._stored = {n: stored for n, stored in self._stored.items() if stored not in ROTARY_TENSORS}
        self.shapes = {name: self._shape(stored) for name, stored in self._stored.items()}

    @property
    def digest(self) -> str:
        """xxh3-128, hex, of the file's bytes."""
        return self._unchanged.digests()[self.path]

    def tensor(self, name: str) -> np.ndarray:
        """The tensor `name` of `shapes`: float32, dequantised now and as it was before the conversion."""
        stored = self._stored[name]
        weight, family = self.file.tensor(stored), self._family
        _, module, kind = _parts(stored)
        if module in family.interleaved:
            weight = _halves(
                weight, self.config["num_attention_heads" if module == "attn_q" else "num_key_value_heads"]
            )
        if self._is_transposed(module, kind):
            weight = weight.T
        if family.norm_offset and module.endswith("norm"):
            weight = weight - np.float32(family.norm_offset)
        self._unchanged.require()
        return np.ascontiguousarray(weight)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """`tensor(name)` cut between rows, a piece at a time, where it is as it was before the conversion."""
        if self._is_converted(*_parts(self._stored[name])[1:]):
            yield self.tensor(name)
        else:
            for piece in self.file.pieces(self._stored[name]):
                self._unchanged.require()
                yield piece

    def _is_converted(self, module: str, kind: str) -> bool:
        offset = self._family.norm_offset and module.endswith("norm")
        return self._is_transposed(module, kind) or module in self._family.interleaved or bool(offset)

    def _is_transposed(self, module: str, kind: str) -> bool:
        return module in self._family.transposed and kind == "weight"

    def _shape(self, stored: str) -> tuple[int, ...]:
        shape = self.file.shapes[stored]
        return shape[::-1] if self._is_transposed(*_parts(stored)[1:]) else shape


def _read(file: GgufFile) -> tuple[GgufFamily, dict[str, Any]]:
    metadata = GgufMetadata(file)
    if metadata.architecture not in GGUF_FAMILIES:
        raise CheckpointError(
            f"{file.path} holds the architecture {metadata.architecture!r}; supported: {', '.join(GGUF_FAMILIES)}"
        )
    kind = file.value("general.type", str, "model")
    if kind != "model":
        raise CheckpointError(f"{file.path} holds a {kind!r}, not a model; name the .gguf file of the model itself")
    if (parts := file.value("split.count", int, 1)) > 1:
        raise CheckpointError(
            f"{file.path} is one of the {parts} files ('split.count') of a model; merge them: llama-gguf-split --merge"
        )
    family = GGUF_FAMILIES[metadata.architecture]
    config = family.finish(metadata, _shared_config(metadata, family))
    metadata.finish()
    return family, config


def _shared_config(m: GgufMetadata, family: GgufFamily) -> dict[str, Any]:
    """What every family has, as llama.cpp reads it where a key is missing."""
    hidden_size, heads = m.value("embedding_length", int), m.value("attention.head_count", int)
    layers = m.value("block_count", int)
    if layers > len(m.file.shapes):
        raise CheckpointError(
            f"{m.file.path} says that it has {layers} layers and holds {len(m.file.shapes)} tensors; convert it again"
        )
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "vocab_size": m.value("vocab_size", int, m.file.shapes.get("token_embd.weight", (0,))[0]),
        "hidden_size": hidden_size,
        "intermediate_size": m.value("feed_forward_length", int),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": m.value("attention.head_count_kv", int, heads),
        "max_position_embeddings": m.value("context_length", int),
    }
    # The architecture refuses a zero by name.
    head_dim = m.value("attention.key_length", int, hidden_size // max(heads, 1))
    m.only("attention.value_length", head_dim)
    m.only("attention.causal", True)
    config["head_dim"] = head_dim
    if family.layer_norm:
        config["layer_norm_eps"] = m.value("attention.layer_norm_epsilon", float)
    else:
        config["rms_norm_eps"] = m.value("attention.layer_norm_rms_epsilon", float)
    if family.rotary:
        config |= read_gguf_rotary(m, head_dim, config["max_position_embeddings"], partly=family.partly_rotary)
    return config


def _parts(stored: str) -> tuple[str | None, str, str]:
    """(layer, module, weight or bias) of a tensor's name; empty where it is not of that form."""
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(\w+)", stored)
    return (found[1], found[2], found[3]) if found else (None, "", "")


def _transformers_name(stored: str, family: GgufFamily) -> str:
    """A tensor that transformers has no name for keeps its own."""
    layer, module, kind = _parts(stored)
    if layer is None:
        return f"{family.model[module]}.{kind}" if module in family.model else stored
    return f"{family.prefix.format(layer)}{family.layer[module]}.{kind}" if module in family.layer else stored


def _halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head: the first ones of all pairs, then the second ones, from pair after pair.

    llama.cpp stores the two halves of a head interleaved (rotary over neighbours); transformers turns halves.
    """
    pairs = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)
