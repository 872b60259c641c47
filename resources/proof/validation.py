"""The validation report: every piece of evidence that an engine's verdict rests on.

Contract: frozen and complete, proved or refused; `to_json` loses nothing. Distances are relative
(`resources.proof.vectors`). A piece that was not reached is None or empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from resources.records import Limits

MICRO = "micro"
MICRO_READ_FIRST = f"{MICRO}, B gathered at its first token"
"""The shapes of the micro-batch: guard, A, B, guard."""

A, B = 1, 2
"""The places of its measured sequences."""


@dataclass(frozen=True)
class BindingEvidence:
    """One tensor, as it was classified."""

    name: str
    role: str
    location: str
    dtype: str
    shape: tuple[int, ...]
    maximum: tuple[int, ...]
    bytes: int
    """Of its buffer, at the maximum shape."""


@dataclass(frozen=True)
class LayerState:
    """What one layer of the graph computed, over every token of a batch."""

    name: str
    elements: int
    non_finite: int
    """Infinities and NaN, as elements."""
    greatest: float
    """The greatest finite magnitude."""


@dataclass(frozen=True)
class StateCheck:
    """Whether the states inside the engine stay within the range of its dtype, on the sample probes."""

    largest: float
    """The largest number of the dtype."""
    layers: tuple[LayerState, ...]
    """In the order of the graph."""
    reason: str | None
    sentence: str | None


@dataclass(frozen=True)
class ConventionTrial:
    """The micro-batch under one convention."""

    convention: str
    last_token_ids: tuple[int, ...]
    fingerprints: tuple[float, ...]
    """Of guard, A, B, guard."""
    separation: float
    """Distance of A's vector to B's."""
    consistent: bool


@dataclass(frozen=True)
class DetectionTrial:
    """The micro-batch of one pair of tokens under both conventions."""

    tokens: tuple[int, int]
    noise_floor: float
    non_finite: int
    denormal: int
    same_under_both: bool
    conventions: tuple[ConventionTrial, ...]


@dataclass(frozen=True)
class Detection:
    """Which convention looks right, before any proof."""

    trials: tuple[DetectionTrial, ...]
    convention: str | None
    decided_by: str | None
    """"only-consistent"; or "tie-break", where both looked right and the larger separation proposed one."""
    reason: str | None
    sentence: str | None


@dataclass(frozen=True)
class InputCheck:
    """Whether the engine reads its tokens: by how much the checksum moved when every token changed."""

    required_percent: float
    moved_percent: tuple[float, ...]
    """One for each seed tried; the last one passed, if any did."""
    reason: str | None
    sentence: str | None


@dataclass(frozen=True)
class OrderCheck:
    """Whether a vector depends on the order of the tokens before its own."""

    n_tokens: int
    """Of the sequence, all but the last of which were reversed."""
    moved: tuple[float, ...]
    """How far its vector moved, in noise floors: one for each seed tried; the last one passed, if any did."""
    reason: str | None
    sentence: str | None


@dataclass(frozen=True)
class Exchange:
    """One trial of a change of one token, in a batch small enough to show whole."""

    before: int
    after: int
    noise_floors: tuple[float, ...]
    """How far each sequence's vector moved, in noise floors."""


@dataclass(frozen=True)
class VectorMovement:
    """A vector that did what it must not."""

    sequence: int
    expected: str
    """"move" or "stay"."""
    noise_floors: float


@dataclass(frozen=True)
class Experiment:
    """One change of tokens, over every trial."""

    change: str
    tokens_changed: int
    must_move: int
    """How many vectors must."""
    moved: int
    """How many of those did, in some trial."""
    least_movement: float | None
    """The least of those, in noise floors; each counts with its best trial."""
    must_stay: int
    """How many vectors must, in every trial."""
    greatest_stay: float | None
    """The most that one of those moved, in noise floors."""
    expected: tuple[str, ...]
    """"move", "stay" or "either" for each vector of a batch small enough to show whole; else empty."""
    exchanges: tuple[Exchange, ...]
    wrong: tuple[VectorMovement, ...]
    """The first few, if any."""


@dataclass(frozen=True)
class Dependence:
    """What moves what, at one shape under one optimisation profile."""

    shape: str
    profile: int
    n_sequences: int
    n_tokens: int
    longest: int
    trials: int
    noise_floor: float
    experiments: tuple[Experiment, ...]
    reason: str | None
    sentence: str | None

    @property
    def micro(self) -> bool:
        """Of the micro-batch, of which every exchange of a token is kept."""
        return self.shape in (MICRO, MICRO_READ_FIRST)


@dataclass(frozen=True)
class Placement:
    """How much a vector depends on where in the pack its sequence lies, and on how many others lie beside it."""

    tolerance: float
    reversed_order: float
    """The greatest distance of a vector to the same sequence's in the reversed batch."""
    alone: float
    """The greatest distance of a vector to the same sequence's in a batch of its own, of those tried."""
    distances: tuple[float, ...]
    """Ascending: of each vector to the same sequence's in the reversed batch. Of many, evenly spaced quantiles."""
    norms: tuple[float, ...]
    """Ascending: of each vector. Of many, evenly spaced quantiles."""
    reason: str | None
    sentence: str | None


@dataclass(frozen=True)
class SampleToken:
    """One token of a sample probe."""

    token_id: int
    text: str
    moved: float
    """How far the probe's vector moved when this token alone was exchanged, as a relative distance."""


@dataclass(frozen=True)
class SampleProbe:
    """A fixed text, as this engine's tokenizer and policy make tokens of it, and its vector."""

    text: str
    tokens: tuple[SampleToken, ...]
    gathered: int
    """The place among them of the token whose state the vector is."""
    cut: bool
    """Only the beginning of the text fits the engine."""
    norm: float
    """Of the vector."""
    apart: float
    """Distance of the vector of the probe alone to its vector in a full pack."""


@dataclass(frozen=True)
class SampleCheck:
    """The sample probes, each alone and in a full pack: what may be expected of two vectors of one text."""

    probes: tuple[SampleProbe, ...]
    n_sequences: int
    """Of the full pack."""
    n_tokens: int
    tolerance: float
    """The most that two vectors of one token sequence in one table may be apart, whatever they were packed with."""
    reason: str | None
    sentence: str | None


@dataclass(frozen=True)
class NextToken:
    """A token that may come next, with its logit by the reference and by the engine's vector."""

    token_id: int
    text: str
    reference: float
    engine: float


@dataclass(frozen=True)
class HeadSample:
    """The language-model head applied to two vectors of one sample probe: the reference's and the engine's."""

    text: str
    next_tokens: tuple[NextToken, ...]
    """The first few, by the reference."""
    engine_top: int
    """The token id with the engine's greatest logit."""
    distance: float
    """Of the engine's vector to the reference's."""
    greatest_difference: float
    """Of any token's two logits."""
    logit_range: float
    """Greatest less least of the reference's logits."""


@dataclass(frozen=True)
class HeadCheck:
    """Whether the engine's vectors are the checkpoint's: against a float64 forward pass that shares no code with it."""

    checkpoint_digest: str
    tolerance: float
    """The most that a vector may be from the reference's, as a relative distance."""
    samples: tuple[HeadSample, ...]
    reason: str | None
    sentence: str | None


@dataclass(frozen=True)
class Clause:
    """One clause of a consumer's contract, with what was seen and what was expected."""

    name: str
    passed: bool
    seen: str
    expected: str


@dataclass(frozen=True)
class Origin:
    """What the engine was built from and what it runs with."""

    tokenizer_id: str
    checkpoint_digest: str
    """Empty for a foreign engine, as is the graph version."""
    graph_version: str
    built_with: Mapping[str, str]
    runs_with: Mapping[str, str]
    tokenizer_policy: Mapping[str, str]


@dataclass(frozen=True)
class ValidationReport:
    """One validation of one engine."""

    engine_id: str
    model_key: str
    verdict: str
    """"proved" or "refused"."""
    reason: str
    """A short, stable code: "proved"; found before running "key-value-cache", "changed-files", "limits-too-small",
    "unknown-tensor", "unfit-tensor"; found by running "failed-to-run", "non-finite", "noisy", "all-zero", "ambiguous",
    "not-consistent", "ignores-input", "ignores-order", "unprovable", "inconclusive", "wrong-dependence",
    "depends-on-placement"; found by comparing "not-the-checkpoint"."""
    sentence: str
    """The same for a person: what was seen, what was expected, what to do."""
    convention: str | None
    """The frozen convention; None when refused."""
    decided_by: str | None
    backend: str
    dtype: str
    limits: Limits
    kv_cache_type: str | None
    origin: Origin
    bindings: tuple[BindingEvidence, ...]
    warm_up: bool
    states: StateCheck | None
    """None where the dtype is wide enough to need none and nothing overflowed, or the backend shows no layers."""
    detection: Detection | None
    input_check: InputCheck | None
    dependence: tuple[Dependence, ...]
    order_check: OrderCheck | None
    placement: Placement | None
    samples: SampleCheck | None
    head: HeadCheck | None
    """None where the checkpoint was not at hand."""
    contract: tuple[Clause, ...]
    """Empty where no consumer was known. A clause that fails keeps an engine from that consumer's work, and leaves the
    verdict alone."""

    def to_json(self) -> str:
        """The whole report as one JSON object; a field that is not finite is a ValueError."""
        return json.dumps(asdict(self), allow_nan=False)
