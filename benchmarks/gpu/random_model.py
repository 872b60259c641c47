"""A checkpoint that is only a shape: random weights, made when asked for. Speed at a width needs no download."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from resources.checkpoint import Checkpoint, TokenizerPolicy, open_checkpoint
from resources.checkpoint.architectures import read_config
from resources.checkpoint.config import tensor_specs
from resources.checkpoint.tokenizer import Tokenizer
from tests.tiny import tiny_gguf

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
}
"""llama-3-8B's, with 4 of its layers and a smaller vocabulary, as the peer has it."""


class RandomModel(Checkpoint):
    """`Checkpoint`'s interface over a configuration alone."""

    def __init__(self) -> None:
        self.name = "random-4096"
        self.config = read_config(CONFIG, where=self.name)
        self._shapes = {spec.name: spec.shape for spec in tensor_specs(self.config)}

    @property
    def digest(self) -> str:
        return f"random {sorted(CONFIG.items())}"

    def tensor(self, name: str) -> np.ndarray:
        """float32, the same for a name every time; a linear layer's keeps the scale of what it is given."""
        shape = self._shapes[name]
        random = np.random.default_rng(zlib.crc32(name.encode()))
        weight = random.standard_normal(shape, dtype=np.float32)
        return 1 + weight / 10 if len(shape) == 1 else weight / np.float32(shape[-1]) ** np.float32(0.5)

    def tokenizer(self, policy: TokenizerPolicy) -> Tokenizer:
        """A small one, whose ids all have a row in the embedding: what is proved reads a few texts."""
        with tempfile.TemporaryDirectory() as folder:
            return open_checkpoint(str(tiny_gguf(Path(folder) / "tiny.gguf"))).tokenizer(policy)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The whole."""
        yield self.tensor(name)
