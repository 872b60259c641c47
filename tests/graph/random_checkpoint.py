"""A checkpoint that is only a configuration: random weights, the same for a name every time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from resources.checkpoint import Checkpoint
from resources.checkpoint.architectures import read_config
from resources.checkpoint.config import tensor_specs

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


class RandomCheckpoint(Checkpoint):
    """`Checkpoint`'s interface over `LLAMA` with `changes`."""

    def __init__(self, **changes: Any) -> None:
        self.name = "random"
        self.config = read_config({**LLAMA, **changes}, where=self.name)
        self._shapes = {spec.name: spec.shape for spec in tensor_specs(self.config)}

    def tensor(self, name: str) -> np.ndarray:
        random = np.random.default_rng(zlib.crc32(name.encode()))
        weight = random.standard_normal(self._shapes[name], dtype=np.float32)
        return 1 + weight / 5 if name.endswith("norm.weight") else weight / np.float32(weight.shape[-1] ** 0.5)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        yield self.tensor(name)
