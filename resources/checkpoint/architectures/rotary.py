"""transformers' rotary settings -> the inverse frequencies of `Rotary`, scaling included.

Contract: the formulas are those of transformers 5.24's modeling_rope_utils, in float64. The settings stand in
`rope_parameters` (transformers 5) or in `rope_scaling` and `rope_theta` (before); both are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.config import LongRotary, Rotary
from resources.errors import CheckpointError

THETA = 10000.0
"""transformers' base where a configuration has none."""


def rotary_settings(reader: ConfigReader) -> ConfigReader:
    """The object that holds the rotary settings; an empty one when they are all left open."""
    old, new = reader.nested("rope_scaling"), reader.nested("rope_parameters")
    if old.values and new.values:
        raise CheckpointError(f"{reader.where} sets both 'rope_scaling' and 'rope_parameters'; leave the first one out")
    settings = old if old.values else new
    for key in ("rope_theta", "partial_rotary_factor"):
        require_agreement(reader, key, settings, key)
    return settings


def require_agreement(reader: ConfigReader, key: str, settings: ConfigReader, inner: str) -> None:
    """Refuses `key` of `reader` and `inner` of `settings` where they differ: versions of transformers read either."""
    outside, inside = reader.values.get(key), settings.values.get(inner)
    if outside is not None and inside is not None and outside != inside:
        raise CheckpointError(
            f"{key!r} of {reader.where} is {outside}, and {inner!r} of {settings.where} is {inside}; leave one out"
        )


def read_rotary(
    settings: ConfigReader,
    *,
    head_dim: int,
    theta: float,
    max_positions: int,
    fraction: float = 1.0,
    original: int | None = None,
) -> Rotary:
    """What `settings` say, where they leave the base and the rotated fraction of a head to `theta` and `fraction`.

    `original` is the length that the model was trained with, when the configuration says so outside of `settings`. For
    the kind "dynamic" the result holds up to `max_positions`: beyond them the frequencies would change with the length.
    """
    kind = settings.text("rope_type", settings.text("type", "default"))
    if "rope_type" in settings and "type" in settings:
        settings.only("type", kind)
    if kind not in _SCALINGS:
        raise CheckpointError(f"the rotary kind of {settings.where} is {kind!r}; supported: {', '.join(_SCALINGS)}")
    turned = head_dim * settings.number("partial_rotary_factor", fraction)
    size = int(turned)
    if size % 2 or not 0 < size <= head_dim:
        raise CheckpointError(
            f"{settings.where}: rotary embedding turns {turned} of a head's {head_dim} dimensions; expected an even "
            "number of them"
        )
    given = _Given(settings, settings.number("rope_theta", theta), size, max_positions, original)
    try:
        with np.errstate(all="raise"):
            return _SCALINGS[kind](given)
    except ArithmeticError as error:
        raise CheckpointError(f"{settings.where} gives no rotary frequencies: {error}; correct it") from error


@dataclass(frozen=True)
class _Given:
    settings: ConfigReader
    theta: float
    size: int
    """Dimensions of a head that are turned."""
    max_positions: int
    original: int | None

    @property
    def frequencies(self) -> np.ndarray:
        """Before any scaling; float64 [size / 2]."""
        return self.theta ** -(np.arange(0, self.size, 2) / self.size)

    @property
    def original_length(self) -> int:
        inside = self.settings.integer("original_max_position_embeddings", self.max_positions)
        return inside if self.original is None else self.original


def _default(given: _Given) -> Rotary:
    return Rotary(inverse_frequencies=_frozen(given.frequencies))


def _linear(given: _Given) -> Rotary:
    return Rotary(inverse_frequencies=_frozen(given.frequencies / given.settings.number("factor")))


def _dynamic(given: _Given) -> Rotary:
    # transformers leaves the base alone up to max_position_embeddings, which is also where a DecoderConfig ends.
    given.settings.number("factor")
    return Rotary(inverse_frequencies=_frozen(given.frequencies))


def _llama3(given: _Given) -> Rotary:
    settings, frequencies = given.settings, given.frequencies
    factor = settings.number("factor")
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    # How often each dimension turns within the original length.
    turns = given.original_length * frequencies / (2 * math.pi)
    smooth = (turns - low) / (high - low)
    between = (1 - smooth) * frequencies / factor + smooth * frequencies
    return Rotary(
        inverse_frequencies=_frozen(
            np.where(turns < low, frequencies / factor, np.where(turns > high, frequencies, between))
        )
    )


def _yarn(given: _Given) -> Rotary:
    settings, original = given.settings, given.original_length
    factor = settings.number("factor", given.max_positions / original)
    attention_factor = settings.number("attention_factor", _yarn_attention_factor(settings, factor))
    truncate = settings.flag("truncate", True)

    def dimension(turns: float) -> float:
        """Where along a head a dimension turns `turns` times within the original length."""
        return given.size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(given.theta))

    low, high = dimension(settings.number("beta_fast", 32.0)), dimension(settings.number("beta_slow", 1.0))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, given.size - 1)
    interpolated = np.clip((np.arange(given.size // 2) - low) / (high - low or 0.001), 0, 1)
    frequencies = given.frequencies * (interpolated / factor + 1 - interpolated)
    return Rotary(inverse_frequencies=_frozen(frequencies), attention_factor=attention_factor)


def _yarn_attention_factor(settings: ConfigReader, factor: float) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    one, other = settings.optional_number("mscale", None), settings.optional_number("mscale_all_dim", None)
    return scale(1.0) if one is None or other is None else scale(one) / scale(other)


def _longrope(given: _Given) -> Rotary:
    settings, original = given.settings, given.original_length
    factor = settings.number("factor", given.max_positions / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short, long = (
        _frozen(given.frequencies / np.array(settings.numbers(name, given.size // 2)))
        for name in ("short_factor", "long_factor")
    )
    return Rotary(
        inverse_frequencies=short,
        attention_factor=settings.number("attention_factor", default),
        # No sequence is longer than max_positions.
        long=LongRotary(beyond=original, inverse_frequencies=long) if original < given.max_positions else None,
    )


_SCALINGS: dict[str, Callable[[_Given], Rotary]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _frozen(frequencies: np.ndarray) -> tuple[float, ...]:
    return tuple(map(float, frequencies))
