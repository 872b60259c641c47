"""The batches on which dependence is shown, and what each change of tokens must and must not move.

Contract: a layout is lengths and changes, no tokens. What is expected holds for any causal model whose sequences do
not see each other. The micro layouts prove the convention; the others prove, with the ids of every sequence as a run of
real work has them, that it holds for each place in a batch and up to each limit:

- crowded: as many sequences as fit, all short. Sequence i is changed in the experiments that are set in the binary code
  of i + 1, so that a vector follows exactly its own sequence, or is found out.
- full: as many sequences as fit, of similar length, filling the token limit.
- long: the longest sequences, filling the token limit.

Full and long are apart because a batch of both would be padded, inside attention, to many times the token limit, which
no plan of work makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from resources.records import Limits


@dataclass(frozen=True)
class Change:
    """Tokens that are exchanged together."""

    label: str
    positions: np.ndarray
    """int [k], of the packed tokens."""
    must_move: np.ndarray
    """bool [n]: vectors that must."""
    must_stay: np.ndarray
    """bool [n]: vectors that must; one in neither is not judged."""


@dataclass(frozen=True)
class Layout:
    name: str
    lengths: np.ndarray
    """int32 [n]."""
    changes: tuple[Change, ...]
    guarded: bool = False
    """The first and last sequence are guards, in range whatever the convention."""
    read_first: int | None = None
    """A sequence that is gathered at its first token instead of its last."""
    repeat: bool = True
    """Measure the noise here; else a smaller layout's floor holds, which spares a long run."""


def micro_layouts() -> tuple[Layout, ...]:
    """Guard, A of one token, B of two, guard; then the same with B gathered at its first token."""
    lengths = np.array([1, 1, 2, 1], dtype=np.int32)
    a, b = 1, 2
    return (
        Layout(
            "micro",
            lengths,
            (
                _change("A's token", [1], lengths, moves=[a], stays=[b]),
                _change("B's first token", [2], lengths, moves=[b], stays=[a]),
                _change(B_LAST, [3], lengths, moves=[b], stays=[a]),
                _change("the guard before A", [0], lengths, moves=[], stays=[a, b]),
                _change("the guard behind B", [4], lengths, moves=[], stays=[a, b]),
            ),
            guarded=True,
        ),
        Layout(
            "micro, B gathered at its first token",
            lengths,
            (
                _change("B's first token", [2], lengths, moves=[b], stays=[a]),
                _change(B_LAST, [3], lengths, moves=[], stays=[a, b]),
            ),
            guarded=True,
            read_first=b,
        ),
    )


B_LAST = "B's last token"


def large_layouts(limits: Limits) -> tuple[Layout, ...]:
    """Crowded, full and, where it differs from full, long."""
    n = min(limits.max_batch_size, limits.max_num_tokens)
    full, long = _full_lengths(n, limits), _long_lengths(n, limits)
    layouts = [_crowded(n, limits), _alternating("full", full)]
    if not np.array_equal(full, long):
        layouts.append(_alternating("long", long))
    return tuple(layouts)


def _crowded(n: int, limits: Limits) -> Layout:
    lengths = np.minimum(np.resize(np.array([2, 1, 3], dtype=np.int32), n), limits.max_input_len)
    if lengths.sum() > limits.max_num_tokens:
        lengths = np.ones(n, dtype=np.int32)
    lasts = np.cumsum(lengths) - 1
    codes = np.arange(1, n + 1)
    changes = [
        _last_tokens(f"last tokens by bit {bit} of the code", lasts, (codes >> bit) & 1 == 1)
        for bit in range(n.bit_length())
    ]
    sequence_of = np.repeat(np.arange(n), lengths)
    for label, parity in (("even", 0), ("odd", 1)):
        chosen = np.arange(n) % 2 == parity
        if chosen.any():
            label = f"every token of the {label} sequences"
            changes.append(Change(label, np.flatnonzero(chosen[sequence_of]), must_move=chosen, must_stay=~chosen))
    return Layout("crowded", lengths, tuple(changes))


def _alternating(name: str, lengths: np.ndarray) -> Layout:
    lasts, places = np.cumsum(lengths) - 1, np.arange(len(lengths))
    changes = [
        _last_tokens(f"last tokens of the {label} sequences", lasts, places % 2 == parity)
        for label, parity in (("even", 0), ("odd", 1))
        if (places % 2 == parity).any()
    ]
    return Layout(name, lengths, tuple(changes), repeat=False)


def _full_lengths(n: int, limits: Limits) -> np.ndarray:
    """Pairs of one token more and one less than the mean, so that equal strides do not pass for right indices."""
    mean = min(limits.max_num_tokens // n, limits.max_input_len)
    lengths = np.full(n, mean, dtype=np.int32)
    if 1 < mean < limits.max_input_len:
        lengths[: n - n % 2 : 2] += 1
        lengths[1::2] -= 1
    spare = limits.max_num_tokens - int(lengths.sum())
    lengths[-min(spare, n) :] += np.where(lengths[-min(spare, n) :] < limits.max_input_len, 1, 0) if spare else 0
    return lengths


def _long_lengths(n: int, limits: Limits) -> np.ndarray:
    longest = min(limits.max_input_len, limits.max_num_tokens)
    whole, rest = divmod(limits.max_num_tokens, longest)
    return np.array(([longest] * whole + [rest] * (rest > 0))[:n], dtype=np.int32)


def _last_tokens(label: str, lasts: np.ndarray, chosen: np.ndarray) -> Change:
    return Change(label, lasts[chosen], must_move=chosen, must_stay=~chosen)


def _change(
    label: str, positions: list[int], lengths: np.ndarray, *, moves: Iterable[int], stays: Iterable[int]
) -> Change:
    places = np.arange(len(lengths))
    return Change(
        label,
        np.array(positions),
        must_move=np.isin(places, list(moves)),
        must_stay=np.isin(places, list(stays)),
    )
