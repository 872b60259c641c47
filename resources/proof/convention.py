"""Which gather convention an engine seems to use, from a micro-batch in which a wrong index shows.

Contract: guard [t], A [t], B [t, u], guard [t]. The right convention gathers t at position 0 for A and u at position 1
for B: two vectors. An index off by one in either direction reads t at position 0 twice: the same vector. The guards'
own ids are in range under both conventions and equal in both. What comes out is a candidate, which
`resources.proof.dependence` must prove.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from resources.packing import PackedBatch, pack
from resources.proof.tokens import Tokens
from resources.proof.validation import A, B, ConventionTrial, Detection, DetectionTrial
from resources.proof.vectors import MOVED, NOISE_CEILING, ROUNDING, Vectors, distances
from resources.records import GatherConvention, Limits

Run = Callable[[PackedBatch], Vectors]

PAIRS = 6
"""Pairs of tokens tried, since rows of an embedding can be equal; the first that shows a convention decides."""

MICRO_LIMITS = Limits(max_batch_size=4, max_num_tokens=5, max_input_len=2)
"""What the micro-batch takes."""


def guarded(sequences: list[np.ndarray], convention: GatherConvention) -> PackedBatch:
    """Packs `sequences`, of which the first and the last are guards, whose ids are in range whatever the convention."""
    batch = pack(sequences, convention)
    ids = batch.last_token_ids.copy()
    ids[0], ids[-1] = 1, batch.n_tokens - 1
    return replace(batch, last_token_ids=ids)


def detect(run: Run, tokens: Tokens, dtype: str, *, seed: int) -> Detection:
    """Runs the micro-batch under both conventions, pair after pair of tokens, until one looks right."""
    trials: list[DetectionTrial] = []
    random = np.random.default_rng(seed)
    for _ in range(PAIRS):
        trial, zero = _try(run, tokens.draw(2, random), dtype)
        trials.append(trial)
        if trial.non_finite:
            return _refused(
                trials,
                "non-finite",
                f"{trial.non_finite} elements of the micro-batch's vectors are not finite",
            )
        if zero:
            return _refused(
                trials, "all-zero", "every output is zero; expected vectors; check the engine's weights and its output"
            )
        if trial.noise_floor > NOISE_CEILING * ROUNDING[dtype]:
            return _refused(
                trials,
                "noisy",
                f"two identical runs differ by {trial.noise_floor:.2g}; expected at most "
                f"{NOISE_CEILING * ROUNDING[dtype]:.2g}; build the engine with deterministic kernels",
            )
        consistent = [c for c in trial.conventions if c.consistent]
        if consistent and not trial.same_under_both:
            # With both consistent this is a guess, and the proof's word is final.
            best = max(consistent, key=lambda c: c.separation)
            decided_by = "only-consistent" if len(consistent) == 1 else "tie-break"
            return Detection(tuple(trials), best.convention, decided_by, reason=None, sentence=None)
    if all(t.same_under_both for t in trials):
        return _refused(
            trials,
            "ambiguous",
            "both conventions give the same vectors; expected one of them to gather other tokens: the engine does not "
            "follow last_token_ids, or not to a last token; build one whose output is gathered by them",
        )
    return _refused(
        trials,
        "not-consistent",
        "under neither convention do a one-token and a two-token sequence get two different vectors; expected one that "
        "gathers each sequence's last token; build an engine that follows last_token_ids",
    )


def _try(run: Run, pair: np.ndarray, dtype: str) -> tuple[DetectionTrial, bool]:
    """The evidence of one pair, and whether every output was zero."""
    t, both = pair[:1], pair
    batches = [guarded([t, t, both, t], convention) for convention in GatherConvention]
    outputs = [run(batch) for batch in batches]
    repeats = [run(batch) for batch in batches]
    non_finite = sum(v.non_finite for v in (*outputs, *repeats))
    noise = (
        0.0 if non_finite else max(distances(a.values, b.values).max() for a, b in zip(outputs, repeats, strict=True))
    )
    floor = max(float(noise), ROUNDING[dtype])
    conventions = tuple(
        _judge(convention.value, batch, output, floor)
        for convention, batch, output in zip(GatherConvention, batches, outputs, strict=True)
    )
    same = not non_finite and bool((distances(outputs[0].values, outputs[1].values) <= MOVED * floor).all())
    trial = DetectionTrial(
        tokens=(int(pair[0]), int(pair[1])),
        noise_floor=floor,
        non_finite=non_finite,
        denormal=sum(v.denormal for v in outputs),
        same_under_both=same,
        conventions=conventions,
    )
    return trial, all(v.zero for v in outputs)


def _judge(convention: str, batch: PackedBatch, output: Vectors, floor: float) -> ConventionTrial:
    separation = 0.0 if output.non_finite else float(distances(output.values[[A]], output.values[[B]])[0])
    fingerprints = output.fingerprints
    return ConventionTrial(
        convention=convention,
        last_token_ids=tuple(int(i) for i in batch.last_token_ids),
        fingerprints=tuple(float(f) for f in fingerprints),
        separation=separation,
        consistent=separation > MOVED * floor and bool((fingerprints[[A, B]] > 0).all()),
    )


def _refused(trials: list[DetectionTrial], reason: str, sentence: str) -> Detection:
    return Detection(tuple(trials), convention=None, decided_by=None, reason=reason, sentence=sentence)
