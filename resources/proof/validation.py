"""The validation report: every piece of evidence that an engine's verdict rests on.

Contract: frozen and complete, proved or refused; `to_json` loses nothing. Distances are relative
(`resources.proof.vectors`). A piece that was not reached is None or empty.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from resources.records import Limits


@dataclass(frozen=True)
class BindingEvidence:
    """One tensor, as it was classified."""

    name: str
    role: str
    location: str
    dtype: str
    shape: tuple[int, ...]
    maximum: tuple[int, ...]


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


@dataclass(frozen=True)
class Placement:
    """How much a vector depends on where in the pack its sequence lies, and on how many others lie beside it."""

    tolerance: float
    reversed_order: float
    """The greatest distance of a vector to the same sequence's in the reversed batch."""
    alone: float
    """The greatest distance of a vector to the same sequence's in a batch of its own, of those tried."""
    reason: str | None
    sentence: str | None


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
    "depends-on-placement"."""
    sentence: str
    """The same for a person: what was seen, what was expected, what to do."""
    convention: str | None
    """The frozen convention; None when refused."""
    decided_by: str | None
    backend: str
    dtype: str
    limits: Limits
    kv_cache_type: str | None
    bindings: tuple[BindingEvidence, ...]
    warm_up: bool
    detection: Detection | None
    input_check: InputCheck | None
    dependence: tuple[Dependence, ...]
    order_check: OrderCheck | None
    placement: Placement | None

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)
