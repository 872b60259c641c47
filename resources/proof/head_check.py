"""Whether an engine's vectors are the checkpoint's: the language-model head, applied to them, must say what it says of
an independent forward pass.

Contract: the reference (`resources.reference_decoder`) is numpy in float64 and shares only the checkpoint's reader with
the graph that the engine was built from; so this shows the graph, its fusions, its precision and the gather to be right
on the sample probes, and says nothing of how the checkpoint was read. Logits are head @ vector: a cap or a scale that a
model puts on them afterwards changes no order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from resources.checkpoint import Checkpoint, Tokenizer
from resources.proof.samples import Sample
from resources.proof.subject import Subject
from resources.proof.validation import HeadCheck, HeadSample, NextToken
from resources.proof.vectors import TABLE_TOLERANCE, distances
from resources.reference_decoder import last_states

SHOWN = 5
"""Next tokens that are shown of each sample."""

ROWS_AT_ONCE = 8192
"""Of the head, made float64."""


def check_head(subject: Subject, samples: Sequence[Sample], checkpoint: Checkpoint, tokenizer: Tokenizer) -> HeadCheck:
    """Both vectors of each sample through the head: near each other, and the same token next.

    Two tokens whose logits the reference has closer than the tolerance, as a share of its logits' range, count as one.
    """
    tolerance = TABLE_TOLERANCE[subject.dtype]
    expected = last_states(checkpoint, [s.ids for s in samples])
    seen = subject.vectors([s.ids for s in samples]).astype(np.float64)
    apart = distances(expected, seen)
    reference, engine = np.split(_logits(checkpoint, np.concatenate([expected, seen])), 2)
    found = tuple(
        _sample(s, r, e, float(d), tokenizer) for s, r, e, d in zip(samples, reference, engine, apart, strict=True)
    )
    sentence = next(filter(None, (_fault(s, r, tolerance) for s, r in zip(found, reference, strict=True))), None)
    return HeadCheck(checkpoint.digest, tolerance, found, "not-the-checkpoint" if sentence else None, sentence)


def _logits(checkpoint: Checkpoint, vectors: np.ndarray) -> np.ndarray:
    """float64 [n, vocab], made a few rows of the head at a time: it is as large as all else together in some models."""
    head = checkpoint.head()
    pieces = np.array_split(head, max(1, len(head) // ROWS_AT_ONCE))
    return np.concatenate([vectors @ piece.T.astype(np.float64) for piece in pieces], axis=1)


def _sample(
    sample: Sample, reference: np.ndarray, engine: np.ndarray, distance: float, tokenizer: Tokenizer
) -> HeadSample:
    top = np.argsort(-reference, kind="stable")[:SHOWN]
    return HeadSample(
        text=sample.text,
        next_tokens=tuple(
            NextToken(int(i), tokenizer.spelled(int(i)), float(reference[i]), float(engine[i])) for i in top
        ),
        engine_top=int(engine.argmax()),
        distance=distance,
        greatest_difference=float(np.abs(reference - engine).max()),
        logit_range=float(np.ptp(reference)),
    )


def _fault(sample: HeadSample, reference: np.ndarray, tolerance: float) -> str | None:
    advice = "build the engine again from this checkpoint, or give the checkpoint that it was built from"
    if sample.distance > tolerance:
        return (
            f"the vector of {sample.text!r} is {sample.distance:.2g} from that of a float64 forward pass of the "
            f"checkpoint; expected at most {tolerance:g}; {advice}"
        )
    gap = float(reference.max() - reference[sample.engine_top])
    if gap > tolerance * sample.logit_range:
        return (
            f"after {sample.text!r} the head puts token {sample.engine_top} first; expected "
            f"{sample.next_tokens[0].token_id}, whose logit the reference has {gap:.2g} higher; {advice}"
        )
    return None
