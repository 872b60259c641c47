"""What a checkpoint's weights are read through, whatever file they lie in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

PIECE = 1 << 24
"""Elements that are read at a time of a tensor that may be larger than a layer: 64 MiB as float32."""


class TensorSource(Protocol):
    """Named weights on disk and the configuration they were stored with, both in transformers' words.

    An error of any of these is a CheckpointError.
    """

    @property
    def name(self) -> str:
        """What a person calls it."""

    @property
    def path(self) -> Path:
        """The file or folder that everything is read from."""

    @property
    def config(self) -> Mapping[str, Any]:
        """transformers' config.json, parsed and not yet judged."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor that is there, under its name in transformers' state dict, with its shape."""

    @property
    def digest(self) -> str:
        """xxh3-128, hex, of all bytes that decide the numbers."""

    def tensor(self, name: str) -> np.ndarray:
        """The tensor `name` of `shapes`: float32, C order, read now and not kept."""

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """`tensor(name)` cut between rows, a piece of about PIECE elements at a time."""
