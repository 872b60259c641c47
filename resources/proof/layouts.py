"""The batches on which dependence is shown, and what each change of tokens must and must not move.

Contract: a layout is lengths and changes, no tokens. What is expected holds for any causal model whose sequences do
not see each other. The micro layouts prove the convention; the others prove, with the ids of every sequence as a run of
real work has them, that it holds for each place in a batch and up to each limit:

- crowded: as many sequences as a batch ever has, all short. Sequence i is changed in the experiments that are set in
  the binary code of i + 1, so that a vector follows exactly its own sequence, or is found out. Again with one sequence
  fewer, since an engine may be right for even numbers only, and with three.
- full: as many sequences as can fill the token limit, of similar length.
- long: one sequence as long as fits.

In full and long a vector must also follow the first half of its sequence, or of the part of it that windows in every
layer let it depend on, or attention may reach back too little. In each of three runs a third of the sequences has its
last token changed, another its first half, and a third nothing.

Each fits `resources.packing.most_sequences`, as every planned batch does, and so the plan's profiles: many short
sequences beside a long one would be padded, inside attention, to many times the token limit. Full and long are few runs
each, since they cost by far the most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from resources.packing import most_sequences
from resources.proof.validation import MICRO, MICRO_READ_FIRST, A, B
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
    """bool [n]: vectors that must; one in none of the three is not judged."""
    mostly_move: np.ndarray | None = None
    """bool [n]: vectors of which at least half must move. In half precision the vector of a right engine can depend on
    its early tokens by less than the noise floor."""


@dataclass(frozen=True)
class Layout:
    """The lengths of one batch's sequences, and the changes of tokens that are tried on it."""

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
    return (
        Layout(
            MICRO,
            lengths,
            (
                _change("A's token", [1], lengths, moves=[A], stays=[B]),
                _change("B's first token", [2], lengths, moves=[B], stays=[A]),
                _change(B_LAST, [3], lengths, moves=[B], stays=[A]),
                _change("the guard before A", [0], lengths, moves=[], stays=[A, B]),
                _change("the guard behind B", [4], lengths, moves=[], stays=[A, B]),
            ),
            guarded=True,
        ),
        Layout(
            MICRO_READ_FIRST,
            lengths,
            (
                _change("B's first token", [2], lengths, moves=[B], stays=[A]),
                _change(B_LAST, [3], lengths, moves=[], stays=[A, B]),
            ),
            guarded=True,
            read_first=B,
        ),
    )


B_LAST = "B's last token"


def large_layouts(limits: Limits, *, reach: int | None = None) -> tuple[Layout, ...]:
    """Crowded in three sizes, full and, where full has shorter sequences, long; the most crowded first.

    `reach` is how many tokens back a vector can depend on, its own with them; None is all of them.
    """
    n = min(limits.max_num_tokens, most_sequences(1, limits))
    longest = min(limits.max_input_len, limits.max_num_tokens)
    layouts = [_crowded("crowded", n, limits, brief=False)]
    layouts += [
        _crowded(f"crowded by {fewer}", fewer, limits, brief=True) for fewer in sorted({n - 1, 3}, reverse=True)
    ]
    full = _full_lengths(n, limits)
    layouts.append(_by_thirds("full", full, reach))
    if full.max() < longest:
        layouts.append(_by_thirds("long", np.array([longest], dtype=np.int32), reach))
    return tuple(layouts)


def _crowded(name: str, n: int, limits: Limits, *, brief: bool) -> Layout:
    # Two tokens at least where there is room: many models say little at position 0, whatever the token.
    lengths = np.minimum(np.resize(np.array([2, 3], dtype=np.int32), n), limits.max_input_len)
    if lengths.sum() > limits.max_num_tokens:
        lengths = np.ones(n, dtype=np.int32)
    lasts = np.cumsum(lengths) - 1
    codes = np.arange(1, n + 1)
    changes = [
        _last_tokens(f"the last tokens by bit {bit} of the code", lasts, (codes >> bit) & 1 == 1)
        for bit in range(n.bit_length())
    ]
    if brief:
        return Layout(name, lengths, tuple(changes), repeat=False)
    even = np.arange(n) % 2 == 0
    positions = np.flatnonzero(np.repeat(even, lengths))
    changes.append(Change("every token of every other sequence", positions, must_move=even, must_stay=~even))
    return Layout(name, lengths, tuple(changes))


def _by_thirds(name: str, lengths: np.ndarray, reach: int | None) -> Layout:
    """No vector only ever has to stay, which would let it be of any token that stays."""
    third = np.arange(len(lengths)) % 3
    seen = lengths if reach is None else np.minimum(lengths, reach)
    halves = seen // 2
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # Of the part that is seen; before it, negative.
    place_seen = place - np.repeat(lengths - seen, lengths)
    changes = []
    for turn in range(3):
        by_last, by_first = third == turn, (third == (turn + 1) % 3) & (halves > 0)
        moves = by_last | by_first
        if not moves.any():
            continue
        last = np.repeat(by_last, lengths) & (place == np.repeat(lengths - 1, lengths))
        first = np.repeat(by_first, lengths) & (place_seen >= 0) & (place_seen < np.repeat(halves, lengths))
        what = [
            f"the {tokens} of every third sequence from {np.argmax(of)}"
            for tokens, of in (("last token", by_last), ("first half", by_first))
            if of.any()
        ]
        changes.append(
            Change(
                " and ".join(what),
                np.flatnonzero(last | first),
                must_move=by_last,
                must_stay=~moves,
                mostly_move=by_first if by_first.any() else None,
            )
        )
    return Layout(name, lengths, tuple(changes), repeat=False)


def _full_lengths(n: int, limits: Limits) -> np.ndarray:
    """Lengths of at most `n` sequences: fewer where that many of such a length are no planned batch."""
    while len(lengths := _similar_lengths(n, limits)) > (most := most_sequences(int(lengths.max()), limits)):
        n = most
    return lengths


def _similar_lengths(n: int, limits: Limits) -> np.ndarray:
    """Pairs of one token more and one less than the mean, so that equal strides do not pass for right indices."""
    mean = min(limits.max_num_tokens // n, limits.max_input_len)
    lengths = np.full(n, mean, dtype=np.int32)
    if 1 < mean < limits.max_input_len:
        lengths[: n - n % 2 : 2] += 1
        lengths[1::2] -= 1
    # What the division left over goes one by one to the last sequences that are not the longest already.
    room = np.flatnonzero(lengths < limits.max_input_len)
    spare = min(limits.max_num_tokens - int(lengths.sum()), len(room))
    lengths[room[len(room) - spare :]] += 1
    return lengths


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
