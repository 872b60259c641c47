"""A consumer's contract: what must hold between a proven engine and the work before any is taken.

Contract: `check_contract` alone decides; it reports every clause, also after one has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resources.proof.proven import ProvenEngine
from resources.proof.validation import Clause, SampleCheck
from resources.proof.vectors import decode, distances
from resources.records import EngineRecord


@dataclass(frozen=True)
class WorkDescription:
    """What a set of work items asks of an engine."""

    model_key: str
    tokenizer_id: str
    hidden_size: int
    dtype: str
    vocab_size: int
    """Every token id is below this."""
    max_sequences: int
    """Of the work item with the most."""
    max_num_tokens: int
    """Of the work item with the most."""
    max_input_len: int
    """Of the longest sequence."""


def work_of(engine: EngineRecord) -> WorkDescription:
    """The most that an engine was registered for: its own model, tokenizer and limits."""
    return WorkDescription(
        model_key=engine.model_key,
        tokenizer_id=engine.tokenizer_id,
        hidden_size=engine.hidden_size,
        dtype=engine.precision,
        vocab_size=engine.vocab_size,
        max_sequences=engine.limits.max_batch_size,
        max_num_tokens=engine.limits.max_num_tokens,
        max_input_len=engine.limits.max_input_len,
    )


@dataclass(frozen=True)
class CanaryBatch:
    """Vectors registered for a `model_key`, which another build of the same model must reproduce."""

    sequences: Sequence[np.ndarray]
    """Int arrays of token ids."""
    vectors: np.ndarray
    """float32 [n_sequences, hidden_size]."""
    tolerance: float
    """The greatest relative distance, ||a - b|| / max(||a||, ||b||), of a vector to the registered one."""


def check_contract(
    engine: ProvenEngine, work: WorkDescription, canary: CanaryBatch | None = None
) -> tuple[Clause, ...]:
    """Every clause between `engine` and `work`. Runs the canary batch when there is one."""
    report, limits = engine.report, engine.limits
    moved = max(report.input_check.moved_percent) if report.input_check else 0.0
    required = report.input_check.required_percent if report.input_check else 0.0
    return (
        _equal("key-value cache", engine.config.kv_cache_type, "disabled"),
        Clause(
            "gather convention",
            report.verdict == "proved" and report.convention == engine.convention.value,
            f"{report.verdict}, {report.convention}, decided by {report.decided_by}",
            f"proved, {engine.convention.value}",
        ),
        Clause(
            "input read",
            report.input_check is not None and report.input_check.reason is None,
            f"checksum moved by {moved:.3g} %",
            f"at least {required:g} %",
        ),
        _batch_invariance(report.samples),
        _equal("hidden size", engine.hidden_size, work.hidden_size),
        _equal("dtype", engine.dtype, work.dtype),
        _at_least("vocabulary", engine.config.vocab_size, work.vocab_size),
        _at_least("sequences in a batch", limits.max_batch_size, work.max_sequences),
        _at_least("tokens in a batch", limits.max_num_tokens, work.max_num_tokens),
        _at_least("tokens in a sequence", limits.max_input_len, work.max_input_len),
        _equal("tokenizer", engine.tokenizer_id, work.tokenizer_id),
        _equal("model key", engine.model_key, work.model_key),
        _canary(engine, canary),
    )


def _batch_invariance(samples: SampleCheck | None) -> Clause:
    name = "batch invariance"
    if samples is None:
        return Clause(name, passed=False, seen="not measured", expected="sample probes alone and in a full pack")
    apart = max(p.apart for p in samples.probes)
    return Clause(name, apart <= samples.tolerance, f"at most {apart:.2g} apart", f"within {samples.tolerance:g}")


def _canary(engine: ProvenEngine, canary: CanaryBatch | None) -> Clause:
    name = "canary vectors"
    if canary is None:
        return Clause(name, passed=True, seen="no canary registered", expected="none registered")
    expected = f"within {canary.tolerance:.3g} of the registered vectors {list(canary.vectors.shape)}"
    shape = (len(canary.sequences), engine.hidden_size)
    if canary.vectors.shape != shape:
        return Clause(name, passed=False, seen=f"vectors {list(shape)}", expected=expected)
    seen = decode(engine.extract(canary.sequences), engine.dtype)
    worst = float(distances(seen.values, canary.vectors).max())
    # NaN is never within a tolerance.
    return Clause(name, worst <= canary.tolerance, f"at most {worst:.3g} away", expected)


def _equal(name: str, seen: object, expected: object) -> Clause:
    return Clause(name, seen == expected, str(seen), str(expected))


def _at_least(name: str, seen: int, expected: int) -> Clause:
    return Clause(name, seen >= expected, str(seen), f"at least {expected}")
