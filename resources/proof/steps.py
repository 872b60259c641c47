"""The steps of a validation, in the one order that makes sense of them, and the evidence as it gathers.

Contract: every step either leaves evidence or refuses with all the evidence so far; none is skipped but those that an
engine's limits or what is at hand leave no room for, and the report then holds None for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from resources.checkpoint import Checkpoint, Tokenizer
from resources.engine.backend import Backend, Engine
from resources.engine.bindings import NUMPY_DTYPE, Binding, classify, require_complete
from resources.engine.config import EngineConfig, foreign_model_key
from resources.errors import EngineError, EngineRefused
from resources.packing import PackedBatch
from resources.proof.convention import MICRO_LIMITS, Run, detect, guarded
from resources.proof.dependence import prove
from resources.proof.head_check import check_head
from resources.proof.input_check import check_input
from resources.proof.layouts import B_LAST, large_layouts, micro_layouts
from resources.proof.order_check import check_order
from resources.proof.origin import origin
from resources.proof.placement import check_placement
from resources.proof.samples import Sample, check_samples, sample_probes
from resources.proof.state_check import advice_if_not_finite, check_states
from resources.proof.subject import Subject
from resources.proof.tokens import Tokens
from resources.proof.validation import (
    MICRO,
    B,
    BindingEvidence,
    Dependence,
    Detection,
    HeadCheck,
    InputCheck,
    OrderCheck,
    Placement,
    SampleCheck,
    StateCheck,
    ValidationReport,
)
from resources.proof.vectors import MOVED, Vectors, decode
from resources.records import GatherConvention, Limits

MICRO_TRIALS = 3
"""Draws of tokens at the micro shape, at least."""

_SEED = 20
"""Any will do; fixed, so that an engine's verdict is the same every time."""

Finding = Detection | InputCheck | OrderCheck | Dependence | Placement | StateCheck | SampleCheck | HeadCheck


@dataclass
class Validation:
    """One validation of one engine. `report` gives what there is so far."""

    directory: Path
    config: EngineConfig
    threads: int | None
    progress: Callable[[str], None]
    tokenizer: Tokenizer | None = None
    """As soon as it is opened."""
    samples: tuple[Sample, ...] = ()
    bindings: tuple[Binding, ...] = ()
    warm_up: bool = False
    states: StateCheck | None = None
    detection: Detection | None = None
    input_check: InputCheck | None = None
    dependence: list[Dependence] = field(default_factory=list)
    order_check: OrderCheck | None = None
    placement: Placement | None = None
    sample_check: SampleCheck | None = None
    head: HeadCheck | None = None

    def require_room(self, limits: Limits) -> None:
        """Refuses limits that the micro-batch does not fit."""
        micro = MICRO_LIMITS
        if not limits.hold(sequences=micro.max_batch_size, tokens=micro.max_num_tokens, longest=micro.max_input_len):
            self.refuse(
                "limits-too-small",
                f"the limits are {limits}; the micro-batch that shows the convention needs {MICRO_LIMITS}; "
                "build the engine with larger limits",
            )

    def bind(self, backend: Backend) -> Engine:
        """The engine of `backend` with every tensor classified; refuses one that has a tensor of no known role."""
        with self.refusing("unknown-tensor"):
            self.bindings = classify(backend.tensors(), self.config)
        with self.refusing("unfit-tensor"):
            require_complete(self.bindings, self.config)
        return Engine(backend, self.bindings, self.config)

    def validate(
        self, engine: Engine, tokens: Tokens, tokenizer: Tokenizer, checkpoint: Checkpoint | None
    ) -> GatherConvention:
        """The proved convention; a refusal raises."""
        dtype = self.config.dtype
        with self.refusing("failed-to-run"):
            self._warm_up(engine, tokens)
            self.samples = sample_probes(tokenizer, self.config.vocab_size, self.config.limits)
            if dtype == "float16":
                self._look_inside()
            self.progress("finding the gather convention")
            run = _runner(engine, dtype, profile=0)
            self.detection = detect(run, tokens, dtype, seed=_SEED)
            self._pass(self.detection)
            convention = GatherConvention(self.detection.convention)
            subject = Subject(run=run, tokens=tokens, convention=convention, dtype=dtype, seed=_SEED)
            self.input_check = check_input(subject)
            self._pass(self.input_check)
            for profile, limits in enumerate(engine.profiles):
                self.require_room(limits)
                subject = replace(subject, run=_runner(engine, dtype, profile=profile))
                for layout in micro_layouts():
                    self._pass(prove(subject, layout, profile=profile, fewest_trials=MICRO_TRIALS))
            self._prove_limits(engine, subject)
            subject = replace(subject, run=_runner(engine, dtype, profile=None))
            self.progress("running the sample probes")
            self.sample_check = check_samples(subject, self.samples, self.config.limits)
            self._pass(self.sample_check)
            if checkpoint is not None:
                self.progress("comparing the sample probes with a float64 forward pass of the checkpoint")
                self.head = check_head(subject, self.samples, checkpoint, tokenizer)
                self._pass(self.head)
        return convention

    def _look_inside(self) -> None:
        """Refuses an engine whose layers overflow. Not asked of a wide dtype unless its vectors are not finite."""
        self.progress("looking at the states after each layer")
        self.states = check_states(self.directory, self.config, self.bindings, self.samples, threads=self.threads)
        if self.states is not None:
            self._pass(self.states)

    def _warm_up(self, engine: Engine, tokens: Tokens) -> None:
        """One-token sequences, so that no kernel ever reads zeroed lengths or ids. Two, the guards of the micro-batch:
        a single one has no index that is in range under both conventions."""
        self.progress("warming up")
        token = tokens.draw(1, np.random.default_rng(_SEED))
        batch = guarded([token, token], GatherConvention.EXCLUSIVE_END)
        for profile in range(len(engine.profiles)):
            engine.run(batch, profile=profile)
        self.warm_up = True

    def _prove_limits(self, engine: Engine, subject: Subject) -> None:
        """What only shows in batches as large as the limits allow."""
        dtype = self.config.dtype
        floor = max(d.noise_floor for d in self.dependence)
        subject = replace(subject, run=_runner(engine, dtype, profile=None))
        self.order_check = check_order(subject, self.config.limits, noise_floor=floor)
        if self.order_check is not None:
            self._pass(self.order_check)
        crowded = large_layouts(self.config.limits, reach=self.config.reach)[0]
        self.placement = check_placement(subject, crowded)
        self._pass(self.placement)
        pairs = _moving_pairs(self.dependence)
        for profile, limits in enumerate(engine.profiles):
            subject = replace(subject, run=_runner(engine, dtype, profile=profile))
            for layout in large_layouts(limits, reach=self.config.reach):
                self.progress(f"proving a batch of {len(layout.lengths)} sequences and {layout.lengths.sum()} tokens")
                self._pass(prove(subject, layout, profile=profile, noise_floor=floor, pairs=pairs))

    def _pass(self, finding: Finding) -> None:
        if isinstance(finding, Dependence):
            self.dependence.append(finding)
        if finding.reason == "non-finite":
            if self.states is None:
                self._look_inside()
            self.refuse(finding.reason, f"{finding.sentence}; {advice_if_not_finite(self.config)}")
        if finding.reason is not None:
            self.refuse(finding.reason, str(finding.sentence))

    @contextmanager
    def refusing(self, reason: str) -> Iterator[None]:
        """Turns an `EngineError` into a refusal with the evidence so far."""
        try:
            yield
        except EngineRefused:
            raise
        except EngineError as error:
            self.refuse(reason, str(error), cause=error)

    def refuse(self, reason: str, sentence: str, *, cause: Exception | None = None) -> NoReturn:
        """Raises `EngineRefused` with the evidence so far."""
        raise EngineRefused(
            f"engine {self.config.engine_id} is refused ({reason}): {sentence}", self.report(reason, sentence)
        ) from cause

    def report(self, reason: str, sentence: str) -> ValidationReport:
        """What there is so far, as a verdict: "proved" when `reason` is that, else "refused"."""
        proved = reason == "proved"
        detection = self.detection
        config, tokenizer = self.config, self.tokenizer
        return ValidationReport(
            engine_id=config.engine_id,
            model_key=_model_key(config, tokenizer),
            verdict="proved" if proved else "refused",
            reason=reason,
            sentence=sentence,
            convention=detection.convention if detection and proved else None,
            decided_by=detection.decided_by if detection else None,
            backend=config.backend,
            dtype=config.dtype,
            limits=config.limits,
            kv_cache_type=config.kv_cache_type,
            origin=origin(config, tokenizer, opened=bool(self.bindings)),
            bindings=tuple(_binding_evidence(b) for b in self.bindings),
            warm_up=self.warm_up,
            states=self.states,
            detection=detection,
            input_check=self.input_check,
            dependence=tuple(self.dependence),
            order_check=self.order_check,
            placement=self.placement,
            samples=self.sample_check,
            head=self.head,
            contract=(),
        )


def _runner(engine: Engine, dtype: str, *, profile: int | None) -> Run:
    def run(batch: PackedBatch) -> Vectors:
        return decode(engine.run(batch, profile=profile), dtype)

    return run


def _moving_pairs(dependence: Sequence[Dependence]) -> list[tuple[int, int]]:
    """The pairs of tokens whose exchange moved B's vector at the micro shape, one for each first token."""
    return list(
        {
            exchange.before: (exchange.before, exchange.after)
            for evidence in dependence
            if evidence.shape == MICRO
            for experiment in evidence.experiments
            if experiment.change == B_LAST
            for exchange in experiment.exchanges
            if exchange.noise_floors[B] > MOVED
        }.values()
    )


def _model_key(config: EngineConfig, tokenizer: Tokenizer | None) -> str:
    """The engine's own, or the one that a foreign engine has with this tokenizer, if it was opened."""
    if config.provenance is not None:
        return config.provenance.model_key
    return foreign_model_key(config, tokenizer.tokenizer_id if tokenizer else "")


def _binding_evidence(binding: Binding) -> BindingEvidence:
    tensor = binding.tensor
    return BindingEvidence(
        tensor.name,
        binding.role.value,
        tensor.location,
        tensor.dtype,
        tensor.shape,
        binding.maximum,
        bytes=math.prod(binding.maximum) * NUMPY_DTYPE[tensor.dtype].itemsize,
    )
