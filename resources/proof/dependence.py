"""The proof: which vectors move when which tokens change.

Contract: `prove` runs a layout's changes over several draws of tokens. A vector that must stay has to in every draw,
at or below the noise floor; one that must move has to in some draw, above `MOVED` floors, since rows of an embedding
can be equal; of those that mostly move, at least half have to. Between the two is a refusal, like everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from resources.packing import PackedBatch, gather_ids, pack
from resources.proof.convention import guarded
from resources.proof.layouts import Change, Layout
from resources.proof.subject import Subject
from resources.proof.tokens import Tokens
from resources.proof.validation import Dependence, Exchange, Experiment, VectorMovement
from resources.proof.vectors import MOVED, NOISE_CEILING, ROUNDING, Vectors, distances
from resources.records import GatherConvention

MOST_TRIALS = 8
SHOWN_SEQUENCES = 8
"""A batch of no more sequences than this is shown whole; of a larger one, only so many wrong vectors."""


def prove(
    subject: Subject,
    layout: Layout,
    *,
    profile: int,
    noise_floor: float = 0.0,
    pairs: Sequence[tuple[int, int]] = (),
    fewest_trials: int = 1,
) -> Dependence:
    """The evidence of one layout; `reason` is None when it holds.

    `profile` is the one that the subject is run with. `noise_floor` is one that was measured before: relative distance.
    `pairs` are tokens whose exchange at the end of a sequence was seen to move its vector. Given some, every sequence
    ends in one, a draw of tokens cannot be unlucky, and a vector that fails to move is wrong rather than unprovable.
    """
    draws = _Draws(layout, subject.tokens, pairs, subject.random())
    tallies = [_Tally(change, len(layout.lengths)) for change in layout.changes]
    floor = max(noise_floor, ROUNDING[subject.dtype])
    trials = 0
    reason = sentence = None
    while trials < MOST_TRIALS and (trials < fewest_trials or not all(t.complete for t in tallies)) and not reason:
        trials += 1
        draw = draws.draw()
        base = subject.run(_batch(layout, draw, subject.convention))
        outputs = [base]
        for tally in tallies:
            changed = draws.exchange(draw, tally.change)
            tally.draws.append((draw, changed))
            outputs.append(subject.run(_batch(layout, changed, subject.convention)))
        if layout.repeat:
            outputs.append(subject.run(_batch(layout, draw, subject.convention)))
        reason, sentence = _unusable(outputs, layout, subject.dtype)
        if reason:
            break
        if layout.repeat:
            floor = max(floor, float(distances(base.values, outputs.pop().values).max()))
        for tally, output in zip(tallies, outputs[1:], strict=True):
            tally.add(distances(base.values, output.values) / floor)
        reason, sentence = _moved_wrongly(layout, tallies)
    if not reason:
        reason, sentence = _failed_to_move(layout, tallies, known=bool(pairs))
    return Dependence(
        shape=layout.name,
        profile=profile,
        n_sequences=len(layout.lengths),
        n_tokens=int(layout.lengths.sum()),
        longest=int(layout.lengths.max()),
        trials=trials,
        noise_floor=floor,
        experiments=tuple(t.evidence() for t in tallies),
        reason=reason,
        sentence=sentence,
    )


@dataclass
class _Tally:
    """What one change did, over the trials so far."""

    change: Change
    n: int
    draws: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    movements: list[np.ndarray] = field(default_factory=list)

    def add(self, movement: np.ndarray) -> None:
        self.movements.append(movement)

    @property
    def greatest(self) -> np.ndarray:
        """float64 [n], each vector's greatest movement in noise floors."""
        return np.max(self.movements, axis=0) if self.movements else np.zeros(self.n)

    @property
    def complete(self) -> bool:
        return bool((self.greatest[self.change.must_move] > MOVED).all()) and self.most_moved

    @property
    def most_moved(self) -> bool:
        """Whether at least half of the vectors that mostly move did."""
        mostly = self.change.mostly_move
        return mostly is None or bool(np.mean(self.greatest[mostly] > MOVED) >= 0.5)

    def evidence(self) -> Experiment:
        greatest, change = self.greatest, self.change
        failed = np.where(change.must_move, greatest <= MOVED, change.must_stay & (greatest > 1))
        single = len(change.positions) == 1 and self.n <= SHOWN_SEQUENCES
        return Experiment(
            change=change.label,
            tokens_changed=len(change.positions),
            must_move=int(change.must_move.sum()),
            moved=int((greatest[change.must_move] > MOVED).sum()),
            least_movement=float(greatest[change.must_move].min()) if change.must_move.any() else None,
            must_stay=int(change.must_stay.sum()),
            greatest_stay=float(greatest[change.must_stay].max()) if change.must_stay.any() else None,
            expected=tuple(
                "move" if move else "stay" if stay else "either"
                for move, stay in zip(change.must_move, change.must_stay, strict=True)
                if self.n <= SHOWN_SEQUENCES
            ),
            exchanges=tuple(
                Exchange(
                    int(before[change.positions[0]]),
                    int(after[change.positions[0]]),
                    tuple(float(m) for m in movement),
                )
                for (before, after), movement in zip(self.draws, self.movements, strict=False)
                if single
            ),
            wrong=tuple(
                VectorMovement(int(i), "move" if change.must_move[i] else "stay", float(greatest[i]))
                for i in np.flatnonzero(failed)[:SHOWN_SEQUENCES]
            ),
        )


@dataclass(frozen=True)
class _Draws:
    """Tokens for a layout, int32 [its tokens]; each sequence ends in the first of a pair, where there are pairs."""

    layout: Layout
    tokens: Tokens
    pairs: Sequence[tuple[int, int]]
    random: np.random.Generator

    def draw(self) -> np.ndarray:
        draw = self.tokens.draw(int(self.layout.lengths.sum()), self.random)
        if self.pairs:
            chosen = self.random.integers(len(self.pairs), size=len(self.layout.lengths))
            draw[self._lasts] = [self.pairs[i][0] for i in chosen]
        return draw

    def exchange(self, draw: np.ndarray, change: Change) -> np.ndarray:
        """`draw` with the tokens of `change` exchanged; last tokens by the pair that they are of."""
        changed = draw.copy()
        changed[change.positions] = self.tokens.others(draw[change.positions], self.random)
        if self.pairs:
            lasts = np.intersect1d(change.positions, self._lasts)
            after = dict(self.pairs)
            changed[lasts] = [after[int(t)] for t in draw[lasts]]
        return changed

    @property
    def _lasts(self) -> np.ndarray:
        return np.cumsum(self.layout.lengths) - 1


def _batch(layout: Layout, tokens: np.ndarray, convention: GatherConvention) -> PackedBatch:
    sequences = np.split(tokens, np.cumsum(layout.lengths)[:-1])
    batch = guarded(sequences, convention) if layout.guarded else pack(sequences, convention)
    if layout.read_first is None:
        return batch
    # The id of a token, whichever sequence it ends, is the one it has where every token is a sequence.
    every = gather_ids(np.ones(batch.n_tokens, dtype=np.int32), convention)
    ids = batch.last_token_ids.copy()
    ids[layout.read_first] = every[int(layout.lengths[: layout.read_first].sum())]
    return replace(batch, last_token_ids=ids)


_Refusal = tuple[str | None, str | None]


def _unusable(outputs: list[Vectors], layout: Layout, dtype: str) -> _Refusal:
    non_finite = sum(v.non_finite for v in outputs)
    if non_finite:
        return "non-finite", f"in the batch “{layout.name}” {non_finite} elements are not finite"
    ceiling = NOISE_CEILING * ROUNDING[dtype]
    noise = float(distances(outputs[0].values, outputs[-1].values).max()) if layout.repeat else 0.0
    if noise > ceiling:
        return "noisy", (
            f"in the batch “{layout.name}” two identical runs differ by {noise:.2g}; expected at most {ceiling:.2g}; "
            "build the engine with deterministic kernels"
        )
    return None, None


def _moved_wrongly(layout: Layout, tallies: list[_Tally]) -> _Refusal:
    worst = max(tallies, key=lambda t: np.max(t.greatest, where=t.change.must_stay, initial=0.0))
    greatest = np.where(worst.change.must_stay, worst.greatest, 0)
    sequence = int(greatest.argmax())
    if greatest[sequence] <= 1:
        return None, None
    seen = (
        f"in the batch “{layout.name}”, changing {worst.change.label} moved the vector of sequence {sequence} by "
        f"{_floors(greatest[sequence])} noise floors"
    )
    if greatest[sequence] <= MOVED:
        return "inconclusive", f"{seen}; expected at most 1, or clearly more; load again on an idle device, or rebuild"
    return "wrong-dependence", (
        f"{seen}; expected it to stay: the vector is gathered at, or attends to, a token that it must not; build an "
        "engine that is causal, keeps the sequences of a pack apart and gathers each one's last token"
    )


def _failed_to_move(layout: Layout, tallies: list[_Tally], *, known: bool) -> _Refusal:
    for tally in tallies:
        wanted = tally.change.must_move
        if not tally.most_moved and tally.change.mostly_move is not None:
            wanted = wanted | tally.change.mostly_move
        still = wanted & (tally.greatest <= MOVED)
        if not still.any():
            continue
        sequence = int(np.flatnonzero(still)[0])
        movement = tally.greatest[sequence]
        seen = (
            f"in the batch “{layout.name}”, changing {tally.change.label} moved the vector of sequence {sequence} by "
            f"{_floors(movement)} noise floors at most; expected more than {MOVED:g}"
        )
        if movement > 1:
            return "inconclusive", f"{seen}, or nothing at all; build the engine in a wider precision"
        if known:
            return "wrong-dependence", (
                f"{seen}, as such a change does in a small batch: the vector is gathered elsewhere, or attention does "
                "not reach back to the first token; build an engine whose limits hold as config.json states them"
            )
        return "unprovable", (
            f"{seen}, with one of {len(tally.movements)} pairs of tokens: nothing shows that the vector is of its own "
            "last token; check the engine's embedding, and that it gathers by last_token_ids"
        )
    return None, None


def _floors(distance: float) -> str:
    return f"{distance:,.0f}" if distance >= 10 else f"{distance:.3g}"
