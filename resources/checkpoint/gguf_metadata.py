"""A strict reader of a GGUF file's metadata: a key of the architecture that nobody took is refused.

Contract: keys are llama.cpp's (`gguf.Keys`, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). One that is not
taken may change the mathematics (rotary scaling, sliding windows, experts), and is a CheckpointError that names it.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np

from resources.checkpoint.gguf_file import GgufFile
from resources.errors import CheckpointError

HARMLESS_PREFIXES = ("GGUF.", "general.", "tokenizer.", "quantize.", "split.")
"""Metadata that says where a file comes from, or that is read and judged elsewhere."""

T = TypeVar("T")
D = TypeVar("D")


class GgufMetadata:
    """The metadata of one file, its keys named without their architecture."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.architecture = file.value("general.architecture", str)
        self._taken: set[str] = set()

    @overload
    def value(self, name: str, kind: type[T]) -> T: ...
    @overload
    def value(self, name: str, kind: type[T], default: D) -> T | D: ...
    def value(self, name: str, kind: Any, default: Any = ...) -> Any:
        """The value of `<architecture>.<name>`, as `GgufFile.value` reads it."""
        key = f"{self.architecture}.{name}"
        self._taken.add(key)
        return self.file.value(key, kind, default)

    def only(self, name: str, allowed: T) -> None:
        """Takes a key that must be missing or have this value."""
        found = self.value(name, type(allowed), allowed)
        if found != allowed:
            raise self.refusal(name, f"{found!r}; only {allowed!r} is supported")

    def periods(self, name: str) -> list[Any] | int | None:
        """A list, or an integer that says how often something recurs; None where the key is missing."""
        key = f"{self.architecture}.{name}"
        self._taken.add(key)
        return self.file.value(key, (list, int), None)

    def ignore(self, *names: str) -> None:
        """Takes keys that do not change the states before the language-model head."""
        self._taken.update(f"{self.architecture}.{name}" for name in names)

    def vector(self, tensor: str) -> list[float] | None:
        """A stored tensor of one dimension that is part of the configuration; None where there is none."""
        if tensor not in self.file.shapes:
            return None
        found = self.file.tensor(tensor)
        if found.ndim != 1 or not np.isfinite(found).all():
            raise CheckpointError(f"{tensor!r} of {self.file.path} is not a vector of finite numbers; convert it again")
        return [float(number) for number in found]

    def finish(self) -> None:
        """Refuses what nobody took."""
        left = [key for key in self.file.keys if key not in self._taken and not key.startswith(HARMLESS_PREFIXES)]
        if left:
            raise CheckpointError(
                f"{self.file.path} sets {', '.join(map(repr, left))}, which may change the mathematics and is not "
                "handled; use the model's safetensors folder"
            )

    def refusal(self, name: str, says: str) -> CheckpointError:
        """What to raise for the value of a key."""
        return CheckpointError(f"'{self.architecture}.{name}' of {self.file.path} is {says}")
