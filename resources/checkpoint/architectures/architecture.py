"""What an architecture file says: how to read its configuration, and which stored tensor each canonical one is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.config import DecoderConfig, tensor_specs


def as_stored(tensor: np.ndarray) -> np.ndarray:
    """The tensor itself."""
    return tensor


@dataclass(frozen=True)
class Source:
    """The stored tensor that a canonical one is, or is a part of."""

    name: str
    shape: tuple[int, ...]
    """Of the stored tensor."""
    take: Callable[[np.ndarray], np.ndarray] = field(default=as_stored)
    """The stored tensor -> the canonical one."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One family of decoders."""

    classes: str
    """How the names of its classes in transformers begin: "Llama"."""
    read_config: Callable[[ConfigReader], DecoderConfig]
    """Takes every key that the family knows; whatever it leaves is refused afterwards."""
    sources: Callable[[DecoderConfig], Mapping[str, Source]]
    """Canonical name -> source, for each of `tensor_specs`."""
    prefixes: tuple[str, ...] = ("model.", "")
    """What may stand before every name of `sources`, the usual one first: a checkpoint has one of them."""
    unread: tuple[str, ...] = ()
    """Regular expressions of stored names, prefix included, that may be there and change nothing; see also UNREAD."""


UNREAD = (r"lm_head\.weight", r"(score|classifier)\.(weight|bias)", r".*\brotary_emb\.inv_freq")
"""The heads of language, reward and classifying models, and frequencies that follow from the configuration."""


def renamed(config: DecoderConfig, names: Mapping[str, str], layer: str = "layers.{}") -> dict[str, Source]:
    """The sources of canonical tensors that are stored whole, under another name.

    `names` maps a module as `tensor_specs` has it, without the layer, to the stored one: "attention.q" -> "attn.q".
    A canonical tensor whose module is not in `names` is left out. `layer` is where a layer's modules are stored.
    """
    found = {}
    for spec in tensor_specs(config):
        place, _, kind = spec.name.rpartition(".")
        stored_in = ""
        if place.startswith("layers."):
            _, index, place = place.split(".", 2)
            stored_in = layer.format(index) + "."
        if place in names:
            found[spec.name] = Source(f"{stored_in}{names[place]}.{kind}", spec.shape)
    return found


def stacked(name: str, parts: Mapping[str, int], *columns: int) -> dict[str, Source]:
    """The sources of canonical tensors that are stored below one another as `name`: `parts` gives the rows of each."""
    shape = (sum(parts.values()), *columns)
    found, first = {}, 0
    for part, rows in parts.items():
        found[part] = Source(name, shape, _rows(first, first + rows))
        first += rows
    return found


def _rows(first: int, end: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda tensor: tensor[first:end]
