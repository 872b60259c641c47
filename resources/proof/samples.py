"""Sample probes: fixed texts through the tokenizer's policy, so that a person sees which token a vector belongs to.

Contract: the texts never change, so that two reports can be laid side by side. A text that the engine cannot hold is
cut to its beginning. What is judged here is gross, as in `resources.proof.placement`; that the vectors keep within the
table's tolerance is a clause of the consumer's contract, and which token moves a vector is shown here and proved
elsewhere (`resources.proof.dependence`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resources.checkpoint import Tokenizer
from resources.checkpoint.chat_template import Unencodable
from resources.errors import EngineError
from resources.packing import most_sequences, plan
from resources.proof.placement import TOLERANCE
from resources.proof.subject import Subject
from resources.proof.tokens import Tokens
from resources.proof.validation import SampleCheck, SampleProbe, SampleToken
from resources.proof.vectors import TABLE_TOLERANCE, distances
from resources.records import Limits

TEXTS = ("The capital of France is", "def add(a, b):\n    return a +", "Grüße aus Köln: 17 + 25 =")
"""Short, and such that a reader can guess what comes next: prose, code, and letters beyond ASCII with a sum."""


@dataclass(frozen=True)
class Sample:
    """One of `TEXTS` as token ids."""

    text: str
    ids: np.ndarray
    """int32 [length >= 1]."""
    pieces: tuple[str, ...]
    """Each token as text."""
    cut: bool


def sample_probes(tokenizer: Tokenizer, vocab_size: int, limits: Limits) -> tuple[Sample, ...]:
    """`TEXTS` as the policy makes tokens of them, each at most a quarter of a batch, so that all fit one pack.

    An id that the engine's vocabulary of `vocab_size` lacks is an `EngineError`.
    """
    room = min(limits.max_input_len, limits.max_num_tokens // (len(TEXTS) + 1))
    encoded = [_ids(tokenizer, text) for text in TEXTS]
    highest = max(int(ids.max()) for ids in encoded)
    if highest >= vocab_size:
        raise EngineError(
            f"the tokenizer gives the id {highest}; the engine's vocabulary ends at {vocab_size - 1}; build the engine "
            "with the tokenizer of its own checkpoint"
        )
    return tuple(
        Sample(text, ids[:room], tuple(tokenizer.spelled(int(i)) for i in ids[:room]), cut=len(ids) > room)
        for text, ids in zip(TEXTS, encoded, strict=True)
    )


def check_samples(subject: Subject, samples: tuple[Sample, ...], limits: Limits) -> SampleCheck:
    """Each sample alone, in a full pack, and with one token after another exchanged."""
    random = subject.random()
    sequences, places = _full_pack(samples, subject.tokens, limits, random)
    alone = np.concatenate([subject.vectors([s.ids]) for s in samples])
    packed = subject.vectors(sequences)[places]
    apart = distances(alone, packed)
    probes = tuple(
        SampleProbe(
            text=sample.text,
            tokens=tuple(
                SampleToken(int(i), piece, float(moved))
                for i, piece, moved in zip(
                    sample.ids,
                    sample.pieces,
                    _movements(subject, sample.ids, vector, limits, random),
                    strict=True,
                )
            ),
            gathered=len(sample.ids) - 1,
            cut=sample.cut,
            norm=float(np.linalg.norm(vector.astype(np.float64))),
            apart=float(distance),
        )
        for sample, vector, distance in zip(samples, alone, apart, strict=True)
        if np.isfinite(vector).all()
    )
    reason, sentence = _judge(alone, packed, apart)
    return SampleCheck(
        probes=probes,
        n_sequences=len(sequences),
        n_tokens=sum(map(len, sequences)),
        tolerance=TABLE_TOLERANCE[subject.dtype],
        reason=reason,
        sentence=sentence,
    )


def _ids(tokenizer: Tokenizer, text: str) -> np.ndarray:
    [ids] = tokenizer.encode_probes([text])
    if isinstance(ids, Unencodable):
        raise EngineError(
            f"the sample probe {text!r} gets no token ids: {ids.detail}; choose a tokenizer policy that takes a text"
        )
    return ids


def _judge(alone: np.ndarray, packed: np.ndarray, apart: np.ndarray) -> tuple[str | None, str | None]:
    non_finite = int(sum(v.size - np.isfinite(v).sum() for v in (alone, packed)))
    if non_finite:
        return "non-finite", f"{non_finite} elements of the sample probes' vectors are not finite"
    if apart.max() > TOLERANCE:
        return "depends-on-placement", (
            f"a sample probe's vector differs by {apart.max():.2g} between alone and in a full pack; expected at most "
            f"{TOLERANCE:.2g}; build an engine that keeps the sequences of a pack apart"
        )
    return None, None


def _full_pack(
    samples: tuple[Sample, ...], tokens: Tokens, limits: Limits, random: np.random.Generator
) -> tuple[list[np.ndarray], list[int]]:
    """As many sequences as fit, with the samples at the beginning, in the middle and at the end; and their places."""
    longest = max(len(s.ids) for s in samples)
    spare = limits.max_num_tokens - sum(len(s.ids) for s in samples)
    others = max(0, min(most_sequences(longest, limits) - len(samples), spare // longest))
    fill = [tokens.draw(longest, random) for _ in range(others)]
    halves = [fill[: others // 2], fill[others // 2 :]]
    sequences: list[np.ndarray] = []
    places = []
    for place, sample in enumerate(samples):
        places.append(len(sequences))
        sequences.append(sample.ids)
        sequences += halves[place] if place < len(halves) else []
    return sequences, places


def _movements(
    subject: Subject, ids: np.ndarray, vector: np.ndarray, limits: Limits, random: np.random.Generator
) -> np.ndarray:
    """float64 [length]: how far the vector moves when each token alone is exchanged for another."""
    changed = np.tile(ids, (len(ids), 1))
    np.fill_diagonal(changed, subject.tokens.others(ids, random))
    batches = plan([len(ids)] * len(ids), limits)
    moved = np.concatenate([subject.vectors(list(changed[b.start : b.stop])) for b in batches])
    return distances(np.broadcast_to(vector, moved.shape), moved)
