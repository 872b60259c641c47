"""`load`: the only door to an engine's vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from resources.checkpoint import Tokenizer, load_tokenizer
from resources.engine.backend import Backend, Engine, open_backend
from resources.engine.bindings import Binding, classify, require_complete
from resources.engine.config import FOREIGN, EngineConfig, read_engine_config, require_raw_path, require_unchanged
from resources.engine.plugins import PluginLibrary
from resources.errors import CheckpointError, EngineError, EngineRefused
from resources.packing import PackedBatch
from resources.proof.convention import MICRO_LIMITS, Run, detect, guarded
from resources.proof.dependence import prove
from resources.proof.input_check import check_input
from resources.proof.layouts import B_LAST, large_layouts, micro_layouts
from resources.proof.order_check import check_order
from resources.proof.placement import check_placement
from resources.proof.proven import ProvenEngine
from resources.proof.tokens import Tokens
from resources.proof.validation import (
    BindingEvidence,
    Dependence,
    Detection,
    InputCheck,
    OrderCheck,
    Placement,
    ValidationReport,
)
from resources.proof.vectors import MOVED, Vectors, decode
from resources.records import TAP, GatherConvention, Limits, model_key

MICRO_TRIALS = 3
"""Draws of tokens at the micro shape, at least."""

_SEED = 20
"""Any will do; fixed, so that an engine's verdict is the same every time."""


def load(
    directory: Path,
    *,
    engine_id: str | None = None,
    threads: int | None = None,
    plugins: Sequence[PluginLibrary] = (),
    progress: Callable[[str], None] | None = None,
) -> ProvenEngine:
    """Opens the engine in `directory` and proves its gather convention, or raises; nothing is left open then.

    `EngineRefused` carries the report with whatever evidence there is; a plain `EngineError` means that there is no
    engine to speak of: a missing file, an unreadable plan; or another one than `engine_id`, if given. `threads` are
    ONNX Runtime's; `plugins` are the libraries that a TensorRT plan needs. `progress` is told, in words, what is being
    done.
    """
    config = read_engine_config(directory)
    if engine_id not in (None, config.engine_id):
        raise EngineError(
            f"{directory} holds engine {config.engine_id}; expected {engine_id}, which was registered; "
            "build or register the engine again"
        )
    validation = _Validation(config, progress or (lambda _: None))
    with validation.refusing("key-value-cache"):
        require_raw_path(config)
    with validation.refusing("changed-files"):
        require_unchanged(directory, config)
        tokenizer = _tokenizer(directory, config)
    validation.tokenizer_id = tokenizer.tokenizer_id
    validation.require_room(config.limits)
    tokens = Tokens(tokenizer, config.vocab_size)
    validation.progress(f"opening the engine {config.engine_id[:16]}")
    with ExitStack() as opened:
        backend = open_backend(directory, config, threads=threads, plugins=plugins)
        opened.callback(backend.close)
        engine = validation.bind(backend)
        opened.callback(engine.close)
        convention = validation.validate(engine, tokens)
        report = validation.report("proved", _proved(convention))
        proven = ProvenEngine(engine, report, tokenizer.tokenizer_id, directory)
        opened.pop_all()
    return proven


@dataclass
class _Validation:
    """The steps of one validation, and the evidence as it gathers."""

    config: EngineConfig
    progress: Callable[[str], None]
    tokenizer_id: str = ""
    bindings: tuple[Binding, ...] = ()
    warm_up: bool = False
    detection: Detection | None = None
    input_check: InputCheck | None = None
    dependence: list[Dependence] = field(default_factory=list)
    order_check: OrderCheck | None = None
    placement: Placement | None = None

    def require_room(self, limits: Limits) -> None:
        if (
            limits.max_batch_size < MICRO_LIMITS.max_batch_size
            or limits.max_num_tokens < MICRO_LIMITS.max_num_tokens
            or limits.max_input_len < MICRO_LIMITS.max_input_len
        ):
            self.refuse(
                "limits-too-small",
                f"the limits are {limits}; the micro-batch that shows the convention needs {MICRO_LIMITS}; "
                "build the engine with larger limits",
            )

    def bind(self, backend: Backend) -> Engine:
        with self.refusing("unknown-tensor"):
            self.bindings = classify(backend.tensors(), self.config)
        with self.refusing("unfit-tensor"):
            require_complete(self.bindings, self.config)
        return Engine(backend, self.bindings, self.config)

    def validate(self, engine: Engine, tokens: Tokens) -> GatherConvention:
        """The proved convention; a refusal raises."""
        dtype = self.config.dtype
        with self.refusing("failed-to-run"):
            self._warm_up(engine, tokens)
            self.progress("finding the gather convention")
            run = _runner(engine, dtype, profile=0)
            self.detection = detect(run, tokens, dtype, seed=_SEED)
            self._pass(self.detection)
            convention = GatherConvention(self.detection.convention)
            self.input_check = check_input(run, tokens, convention, seed=_SEED)
            self._pass(self.input_check)
            for profile, limits in enumerate(engine.profiles):
                self.require_room(limits)
                run = _runner(engine, dtype, profile=profile)
                for layout in micro_layouts():
                    self._pass(
                        prove(
                            run,
                            layout,
                            tokens,
                            convention,
                            dtype,
                            profile=profile,
                            seed=_SEED,
                            fewest_trials=MICRO_TRIALS,
                        )
                    )
            self._prove_limits(engine, tokens, convention)
        return convention

    def _warm_up(self, engine: Engine, tokens: Tokens) -> None:
        """One-token sequences, so that no kernel ever reads zeroed lengths or ids. Two, the guards of the micro-batch:
        a single one has no index that is in range under both conventions."""
        self.progress("warming up")
        token = tokens.draw(1, np.random.default_rng(_SEED))
        batch = guarded([token, token], GatherConvention.EXCLUSIVE_END)
        for profile in range(len(engine.profiles)):
            engine.run(batch, profile=profile)
        self.warm_up = True

    def _prove_limits(self, engine: Engine, tokens: Tokens, convention: GatherConvention) -> None:
        dtype = self.config.dtype
        floor = max(d.noise_floor for d in self.dependence)
        run = _runner(engine, dtype, profile=None)
        self.order_check = check_order(run, tokens, convention, self.config.limits, noise_floor=floor, seed=_SEED)
        if self.order_check is not None:
            self._pass(self.order_check)
        crowded = large_layouts(self.config.limits)[0]
        self.placement = check_placement(run, crowded, tokens, convention, seed=_SEED)
        self._pass(self.placement)
        pairs = _moving_pairs(self.dependence)
        for profile, limits in enumerate(engine.profiles):
            run = _runner(engine, dtype, profile=profile)
            for layout in large_layouts(limits):
                self.progress(f"proving a batch of {len(layout.lengths)} sequences and {layout.lengths.sum()} tokens")
                self._pass(
                    prove(
                        run,
                        layout,
                        tokens,
                        convention,
                        dtype,
                        profile=profile,
                        seed=_SEED,
                        noise_floor=floor,
                        pairs=pairs,
                    )
                )

    def _pass(self, finding: Detection | InputCheck | OrderCheck | Dependence | Placement) -> None:
        if isinstance(finding, Dependence):
            self.dependence.append(finding)
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
        raise EngineRefused(
            f"engine {self.config.engine_id} is refused ({reason}): {sentence}", self.report(reason, sentence)
        ) from cause

    def report(self, reason: str, sentence: str) -> ValidationReport:
        proved = reason == "proved"
        detection = self.detection
        config = self.config
        return ValidationReport(
            engine_id=config.engine_id,
            model_key=_model_key(config, self.tokenizer_id),
            verdict="proved" if proved else "refused",
            reason=reason,
            sentence=sentence,
            convention=detection.convention if detection and proved else None,
            decided_by=detection.decided_by if detection else None,
            backend=config.backend,
            dtype=config.dtype,
            limits=config.limits,
            kv_cache_type=config.kv_cache_type,
            bindings=tuple(_binding_evidence(b) for b in self.bindings),
            warm_up=self.warm_up,
            detection=detection,
            input_check=self.input_check,
            dependence=tuple(self.dependence),
            order_check=self.order_check,
            placement=self.placement,
        )


def _tokenizer(directory: Path, config: EngineConfig) -> Tokenizer:
    try:
        tokenizer = load_tokenizer(directory)
    except CheckpointError as error:
        advice = "" if config.provenance else "; register a foreign engine with the engine asset's `directory`"
        raise EngineError(f"{error}{advice}") from error
    expected = config.provenance.tokenizer_id if config.provenance else tokenizer.tokenizer_id
    if tokenizer.tokenizer_id != expected:
        raise EngineError(
            f"the tokenizer in {directory} is {tokenizer.tokenizer_id}; expected {expected}, which config.json names; "
            "build the engine again"
        )
    return tokenizer


def _runner(engine: Engine, dtype: str, *, profile: int | None) -> Run:
    def run(batch: PackedBatch) -> Vectors:
        return decode(engine.run(batch, profile=profile), dtype)

    return run


def _moving_pairs(dependence: Sequence[Dependence]) -> list[tuple[int, int]]:
    """The pairs of tokens whose exchange moved B's vector at the micro shape, one for each first token."""
    b = 2
    return list(
        {
            exchange.before: (exchange.before, exchange.after)
            for evidence in dependence
            if evidence.shape == "micro"
            for experiment in evidence.experiments
            if experiment.change == B_LAST
            for exchange in experiment.exchanges
            if exchange.noise_floors[b] > MOVED
        }.values()
    )


def _model_key(config: EngineConfig, tokenizer_id: str) -> str:
    """The engine's own; a foreign engine's plan stands in for the checkpoint and graph that made it."""
    if config.provenance is not None:
        return config.provenance.model_key
    return model_key(
        checkpoint_digest=config.engine_id,
        graph_version=FOREIGN,
        tokenizer_id=tokenizer_id,
        tap=TAP,
        dtype=config.dtype,
    )


def _binding_evidence(binding: Binding) -> BindingEvidence:
    tensor = binding.tensor
    return BindingEvidence(
        tensor.name, binding.role.value, tensor.location, tensor.dtype, tensor.shape, binding.maximum
    )


def _proved(convention: GatherConvention) -> str:
    return (
        f"last_token_ids is the {convention.value.replace('_', ' ')}: seen in the micro-batch and proved by dependence"
    )
