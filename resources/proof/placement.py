"""Whether a sequence gets the same vector wherever it lies in a pack, and alone.

Contract: a loose check against gross errors that no exchange of tokens shows, such as positions counted over the whole
pack. Kernels round differently from shape to shape, so small differences pass; the canary of a consumer's contract is
the tight comparison.
"""

from __future__ import annotations

import numpy as np

from resources.proof.layouts import Layout
from resources.proof.subject import Subject
from resources.proof.validation import Placement
from resources.proof.vectors import distances

TOLERANCE = 1 / 16
"""Relative distance. FP16 on an H200 was seen 0.0062 from float32 at most (benchmarks/results/gpu_parity.json)."""

SHOWN = 201
"""Values that stand for a distribution."""

ALONE = 2
"""Sequences that are run in a batch of their own: the last ones, which lie farthest from the start."""


def check_placement(subject: Subject, layout: Layout) -> Placement:
    """Runs the layout's batch, the same in reversed order, and its last sequences alone."""
    draw = subject.tokens.draw(int(layout.lengths.sum()), subject.random())
    sequences = np.split(draw, np.cumsum(layout.lengths)[:-1])
    base = subject.vectors(sequences)
    mirrored = subject.vectors(sequences[::-1])[::-1]
    alone = np.concatenate([subject.vectors([s]) for s in sequences[-ALONE:]])
    apart = distances(base, mirrored)
    by_order = float(apart.max())
    by_company = float(distances(base[-ALONE:], alone).max())
    holds = max(by_order, by_company) <= TOLERANCE
    return Placement(
        TOLERANCE,
        by_order,
        by_company,
        distances=_spread(apart),
        norms=_spread(np.linalg.norm(base.astype(np.float64), axis=1)),
        reason=None if holds else "depends-on-placement",
        sentence=None
        if holds
        else f"a sequence's vector differs by {by_order:.2g} when the batch is reversed and by {by_company:.2g} "
        f"when it is alone; expected at most {TOLERANCE:.2g}: the vector depends on where in the pack the sequence "
        "lies; build an engine that takes positions from position_ids and keeps the sequences of a pack apart",
    )


def _spread(values: np.ndarray) -> tuple[float, ...]:
    """The values in order; of more than `SHOWN` the quantiles, least and greatest among them."""
    return tuple(float(v) for v in np.quantile(values, np.linspace(0, 1, min(len(values), SHOWN))))
