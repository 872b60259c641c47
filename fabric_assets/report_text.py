"""A validation report as lines for a terminal: the verdict first, then the evidence in the order it was gathered."""

from __future__ import annotations

from collections.abc import Iterator

from resources.proof.validation import Dependence, DetectionTrial, ValidationReport


def lines(report: ValidationReport) -> Iterator[str]:
    """The lines, without line ends."""
    yield f"{report.verdict}: {report.sentence}"
    yield f"  engine {report.engine_id}, model key {report.model_key}"
    yield f"  convention {report.convention or 'none'}, decided by {report.decided_by or 'nothing'}"
    limits = report.limits
    yield (
        f"  {report.backend} {report.dtype}; at most {limits.max_batch_size} sequences, {limits.max_num_tokens} tokens,"
        f" {limits.max_input_len} tokens a sequence; key-value cache {report.kv_cache_type or 'not given'}"
    )
    for binding in report.bindings:
        yield (
            f"  tensor {binding.name}: {binding.role}, {binding.location}, {binding.dtype} {list(binding.shape)}, "
            f"at most {list(binding.maximum)}"
        )
    if report.detection is not None:
        for detection_trial in report.detection.trials:
            yield from _detection(detection_trial)
    if report.input_check is not None:
        moved = max(report.input_check.moved_percent, default=0.0)
        yield (
            f"  input check: changing every token moved the checksum by {moved:.3g} %, "
            f"needed {report.input_check.required_percent:g} %"
        )
    for dependence in report.dependence:
        yield from _dependence(dependence)
    if report.order_check is not None:
        yield (
            f"  order check: reversing the tokens before the last of {report.order_check.n_tokens} moved a vector by "
            f"{max(report.order_check.moved):.3g} floors"
        )
    if report.placement is not None:
        yield (
            f"  placement: {report.placement.reversed_order:.2g} apart in a reversed batch, "
            f"{report.placement.alone:.2g} alone; at most {report.placement.tolerance:.2g}"
        )


def _detection(trial: DetectionTrial) -> Iterator[str]:
    yield f"  detection with tokens {trial.tokens[0]} and {trial.tokens[1]}, noise floor {trial.noise_floor:.2g}:"
    for convention in trial.conventions:
        fingerprints = ", ".join(f"{f:.6g}" for f in convention.fingerprints)
        yield (
            f"    {convention.convention}: ids {list(convention.last_token_ids)}, fingerprints {fingerprints}, "
            f"separation {convention.separation:.3g}, {'' if convention.consistent else 'not '}consistent"
        )


def _dependence(dependence: Dependence) -> Iterator[str]:
    yield (
        f"  dependence, {dependence.shape} ({dependence.n_sequences} sequences, {dependence.n_tokens} tokens, longest "
        f"{dependence.longest}), noise floor {dependence.noise_floor:.2g}, {dependence.trials} trial(s):"
    )
    for experiment in dependence.experiments:
        moved = f"{experiment.moved} of {experiment.must_move} that must move did"
        if experiment.least_movement is not None:
            moved += f" (least {experiment.least_movement:.3g} floors)"
        if experiment.greatest_stay is not None:
            moved += f"; {experiment.must_stay} must stay (most {experiment.greatest_stay:.3g} floors)"
        yield f"    changing {experiment.change}: {moved}"
