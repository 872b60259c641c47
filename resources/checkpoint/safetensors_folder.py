"""A folder as transformers saves it: config.json and the weights as safetensors, in one file or in shards.

Contract: nothing is unpickled, ever; a folder that holds only pickles is refused with the command that converts it.
Files may be symbolic links, as they are in a hub cache. The format is
https://huggingface.co/docs/safetensors/index#format, parsed by the `safetensors` package.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Registers bfloat16 with numpy, which `safetensors` asks for.
import ml_dtypes  # noqa: F401
import numpy as np
from safetensors import SafetensorError, safe_open

from resources.checkpoint.source import PIECE
from resources.checkpoint.unchanged import Unchanged
from resources.errors import CheckpointError
from resources.records import digest

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"

DTYPES = ("F32", "F16", "BF16")
"""How a weight may be stored."""

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class SafetensorsFolder:
    """The weights and configuration of one folder: a `TensorSource`."""

    def __init__(self, path: Path, *, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.resolve().name
        if not path.is_dir():
            raise CheckpointError(f"{path} is not a folder; name one that holds {CONFIG} and {SINGLE}")
        if (path / ADAPTER).exists():
            raise CheckpointError(
                f"{path} holds an adapter ({ADAPTER}), which is not handled: merge it into its base model and save "
                "that, or remove it where the weights beside it are the whole model"
            )
        if not (path / CONFIG).exists():
            raise CheckpointError(f"{path} has no {CONFIG}; {_instead(path)}")
        self._unchanged = Unchanged()
        self._unchanged.watch(path / CONFIG)
        self.config = read_json(path / CONFIG)
        self._shards = _shards(path)
        self._shard_of: dict[str, Path] = {}
        self._dtypes: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for shard, expected in self._shards.items():
            self._unchanged.watch(shard)
            self._read_header(shard, expected)

    @property
    def digest(self) -> str:
        """xxh3-128, hex, of the bytes of config.json and of every weight file, with their names.

        The same weights in other shards have another digest.
        """
        digests = self._unchanged.digests()
        files = [(path.name, digests[path]) for path in (self.path / CONFIG, *sorted(self._shards))]
        return digest(part.encode() for file in files for part in file).hex()

    def tensor(self, name: str) -> np.ndarray:
        """The tensor `name`, as float32 [shape], read now and not kept."""
        values = np.empty(self.shapes[name], dtype=np.float32)
        rows, first = values.reshape(-1) if values.ndim == 0 else values, 0
        # Its stored form is never in memory with it.
        for piece in self.pieces(name):
            rows[first : first + len(piece)] = piece
            first += len(piece)
        return values

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """`tensor(name)` cut between rows, a piece of about PIECE elements at a time; a number alone is one row."""
        dtype = self._dtypes[name]
        if dtype not in DTYPES:
            raise CheckpointError(
                f"{name!r} of {self.path} is stored as {dtype}; expected one of {', '.join(DTYPES)}: save the model "
                "again in one of them"
            )
        rows, *columns = self.shapes[name] or (1,)
        step = max(1, PIECE // max(1, math.prod(columns)))
        for first in range(0, rows, step):
            yield self._rows(name, first, min(first + step, rows))

    def _rows(self, name: str, first: int, end: int) -> np.ndarray:
        shard = self._shard_of[name]
        # Opened anew each time: what was read of a mapped file counts as memory for as long as the file stays mapped.
        with _opened(shard) as file:
            try:
                part = file.get_slice(name)
                if tuple(part.get_shape()) != self.shapes[name] or part.get_dtype() != self._dtypes[name]:
                    raise SafetensorError(f"{name!r} is another")
                found = part[first:end] if self.shapes[name] else file.get_tensor(name).reshape(1)
                rows = np.ascontiguousarray(found, dtype=np.float32)
            except SafetensorError as error:
                raise CheckpointError(
                    f"{shard} changed since it was opened: {error}; open the checkpoint again"
                ) from error
        self._unchanged.require(shard)
        return rows

    def _read_header(self, shard: Path, expected: frozenset[str] | None) -> None:
        with _opened(shard) as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        if twice := sorted(slices.keys() & self.shapes.keys()):
            raise CheckpointError(
                f"{self.path} holds {twice[0]!r} in both {self._shard_of[twice[0]].name} and {shard.name}; expected it "
                "in one; fetch or save the model again"
            )
        if expected is not None and (odd := sorted(slices.keys() ^ expected)):
            where = ("is not in", "though") if odd[0] in expected else ("is in", "and not where")
            raise CheckpointError(
                f"{odd[0]!r} {where[0]} {shard}, {where[1]} {INDEX} says so; fetch or save the model again"
            )
        for name, part in slices.items():
            self._shard_of[name] = shard
            self._dtypes[name] = part.get_dtype()
            self.shapes[name] = tuple(part.get_shape())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a checkpoint; a key that stands twice is an error, since readers differ on it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if twice := [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]:
            raise ValueError(f"{twice[0]!r} stands twice in it")
        return dict(pairs)

    try:
        content = json.loads(path.read_bytes(), object_pairs_hook=unique)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; make it readable") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON that can be read: {error}; fetch or save the model again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content


def conversion(source: str, folder: str) -> str:
    """The command that saves the model `source`, a folder or a hub id, as safetensors in `folder`."""
    names = "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T"
    saved = "; ".join(f"{name}.from_pretrained('{source}').save_pretrained('{folder}')" for name in "MT")
    return f'python -c "{names}; {saved}"'


def _instead(folder: Path) -> str:
    """What to name where a folder has no configuration."""
    if files := sorted(path.name for path in folder.glob("*.gguf")):
        return f"it holds {files[0]}: name that file"
    return "name a folder that transformers' save_pretrained wrote"


def _shards(folder: Path) -> dict[Path, frozenset[str] | None]:
    """Each weight file, with the tensors that the index says it holds; None where there is no index."""
    single, index = (folder / SINGLE).exists(), (folder / INDEX).exists()
    if index:
        parts = _indexed(folder / INDEX)
        if single and folder / SINGLE not in parts:
            raise CheckpointError(f"{folder} has {SINGLE} and an index of other files; remove what is not the model")
        return parts
    if single:
        return {folder / SINGLE: None}
    if any(folder.glob("model-*.safetensors")):
        raise CheckpointError(f"{folder} has shards and no {INDEX}; fetch the model again")
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder} holds its weights only as {pickles[0]}, a pickle, which can run any code and is never opened "
            f"here; where you trust it, convert it with transformers: {conversion(str(folder), str(folder))}"
        )
    raise CheckpointError(f"{folder} has neither {SINGLE} nor {INDEX}; name a folder that holds a model's weights")


def _indexed(index: Path) -> dict[Path, frozenset[str] | None]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{index} has no 'weight_map' of tensor names to file names; fetch the model again")
    names: dict[str, set[str]] = {}
    for tensor, file in weight_map.items():
        names.setdefault(file, set()).add(tensor)
    for file in names:
        if Path(file).name != file:
            raise CheckpointError(f"{index} names the file {file!r}; expected the name of a file beside it")
    return {index.parent / file: frozenset(tensors) for file, tensors in names.items()}


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="np")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; fetch the model again") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged or cut short: {error}; fetch the model again") from error
