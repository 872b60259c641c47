"""One GGUF file: typed metadata and tensors as float32, with every defect a CheckpointError.

Contract: the file is mapped, not read; a tensor is dequantised when it is asked for and not kept. The format is ggml's
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), parsed by the `gguf` package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, overload

import gguf
import numpy as np

from resources.checkpoint.source import PIECE
from resources.errors import CheckpointError

MAGIC = b"GGUF"

T = TypeVar("T")
D = TypeVar("D")


class GgufFile:
    """A GGUF file, opened and parsed. `keys` are its metadata keys, `shapes` its tensors in numpy's order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _parse(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.keys = tuple(self._reader.fields)
        self.shapes = {name: tuple(int(d) for d in t.shape[::-1]) for name, t in self._tensors.items()}

    @overload
    def value(self, key: str, kind: type[T]) -> T: ...
    @overload
    def value(self, key: str, kind: type[T], default: D) -> T | D: ...
    @overload
    def value(self, key: str, kind: tuple[type, ...], default: Any = ...) -> Any: ...
    def value(self, key: str, kind: Any, default: Any = ...) -> Any:
        """The metadata value of `key`, which must be of `kind`, or of one of them (a list for a GGUF array).

        Without a default, a missing key is an error.
        """
        if key not in self._reader.fields:
            if default is ...:
                raise CheckpointError(f"{self.path} has no {key!r}, which is needed; convert the model again")
            return default
        try:
            found = self._reader.fields[key].contents()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{key!r} of {self.path} is not UTF-8: {error}; convert the model again") from error
        # bool is a subclass of int, and a flag where a number belongs is a defect.
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if type(found) not in kinds:
            expected = " or ".join(k.__name__ for k in kinds)
            raise CheckpointError(
                f"{key!r} of {self.path} is {str(found)[:80]!r}, a {type(found).__name__}; expected {expected}"
            )
        return found

    def tensor(self, name: str) -> np.ndarray:
        """The tensor `name`, dequantised: float32, in numpy's order (rows first)."""
        return self._dequantised(name, self._tensors[name].data).reshape(self.shapes[name])

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """`tensor(name)` cut between rows, a piece of about PIECE elements at a time."""
        rows, *columns = self.shapes[name]
        if not columns:
            yield self.tensor(name)
            return
        # A row is whole blocks of its quantisation.
        stored = self._tensors[name].data.reshape(rows, -1)
        step = max(1, PIECE // max(1, math.prod(columns)))
        for first in range(0, rows, step):
            yield self._dequantised(name, stored[first : first + step]).reshape(-1, *columns)

    def _dequantised(self, name: str, data: np.ndarray) -> np.ndarray:
        tensor = self._tensors[name]
        try:
            values = gguf.dequantize(data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(
                f"{name!r} of {self.path} is stored as {tensor.tensor_type.name}, which cannot be dequantised here "
                f"({error}); convert the model to F16, Q8_0 or another common type"
            ) from error
        return np.ascontiguousarray(values, dtype=np.float32)


class _BoundedReader(gguf.GGUFReader):
    """GGUFReader slices past the end without a word, so that a damaged count can keep it looping; this one stops."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        found = super()._get(offset, dtype, count, override_order)
        if len(found) < count:
            raise ValueError(f"it has {len(self.data)} bytes, and what it says of itself goes on past them")
        return found


def _parse(path: Path) -> gguf.GGUFReader:
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; name a .gguf file") from error
    if magic != MAGIC:
        raise CheckpointError(f"{path} begins with {magic!r}, not with {MAGIC!r}: it is not a GGUF file; name one")
    try:
        reader = _BoundedReader(path)
    except Exception as error:  # a damaged file makes the parser fail in many ways, and each means the same
        raise CheckpointError(f"{path} is damaged or cut short: {error}; fetch or convert it again") from error
    if reader.byte_order == "S":
        raise CheckpointError(f"{path} is of the other byte order than this machine; convert it for this one")
    return reader
