"""Whether a vector depends on the order of the tokens before its own.

Contract: shows an engine that reads no positions, as far as order can: in a model of several layers a causal mask alone
tells orders apart, and that passes.
"""

from __future__ import annotations

import numpy as np

from resources.proof.subject import Subject
from resources.proof.validation import OrderCheck
from resources.proof.vectors import MOVED, distances
from resources.records import Limits

FEWEST_TOKENS = 3
"""Two, whose order can differ, and the last."""

MOST_TOKENS = 8
SEEDS = 16


def check_order(subject: Subject, limits: Limits, *, noise_floor: float) -> OrderCheck | None:
    """Reverses all tokens of a short sequence but the last; its vector must move, for one seed.

    None where the limits hold no sequence of `FEWEST_TOKENS`.
    """
    n_tokens = min(MOST_TOKENS, limits.max_input_len, limits.max_num_tokens)
    if n_tokens < FEWEST_TOKENS:
        return None
    random = subject.random()
    moved: list[float] = []
    for _ in range(SEEDS):
        forward = subject.tokens.draw(n_tokens, random)
        backward = np.concatenate([forward[-2::-1], forward[-1:]])
        first, second = (subject.vectors([t]) for t in (forward, backward))
        moved.append(float(distances(first, second)[0]) / noise_floor)
        if moved[-1] > MOVED:
            return OrderCheck(n_tokens, tuple(moved), reason=None, sentence=None)
    return OrderCheck(
        n_tokens,
        tuple(moved),
        reason="ignores-order",
        sentence=f"reversing the {n_tokens - 1} tokens before the last moved a vector by {max(moved):.3g} noise floors "
        f"at most over {SEEDS} seeds; expected more than {MOVED:g}: the engine does not tell the order of its tokens; "
        "build one that reads position_ids",
    )
