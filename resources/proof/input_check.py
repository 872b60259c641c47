"""Whether an engine reads its tokens at all."""

from __future__ import annotations

import numpy as np

from resources.proof.convention import guarded
from resources.proof.subject import Subject
from resources.proof.validation import InputCheck

REQUIRED_PERCENT = 0.1
SEEDS = 16


def check_input(subject: Subject) -> InputCheck:
    """Changes every token of the micro-batch; the sum of absolute values of all outputs must move, for one seed."""
    tokens, random = subject.tokens, subject.random()
    moved: list[float] = []
    for _ in range(SEEDS):
        before = tokens.draw(5, random)
        after = tokens.others(before, random)
        first, second = (
            float(subject.run(guarded([t[:1], t[1:2], t[2:4], t[4:]], subject.convention)).fingerprints.sum())
            for t in (before, after)
        )
        moved.append(100 * abs(second - first) / max(first, second, np.finfo(np.float64).tiny))
        if moved[-1] >= REQUIRED_PERCENT:
            return InputCheck(REQUIRED_PERCENT, tuple(moved), reason=None, sentence=None)
    return InputCheck(
        REQUIRED_PERCENT,
        tuple(moved),
        reason="ignores-input",
        sentence=f"changing every token moved the checksum by {max(moved):.2g} % at most over {SEEDS} seeds; expected "
        f"{REQUIRED_PERCENT} %: the engine does not read input_ids; build one that does",
    )
