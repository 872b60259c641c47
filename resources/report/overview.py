"""The verdict at a glance: the facts of the engine, and every step of the validation with what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from resources.proof.validation import Dependence, ValidationReport
from resources.report.view import Cell, Mark, Section, Table, apart, measure, row

_DECIDED_BY = {
    "only-consistent": "only one convention gave the two measured sequences two different vectors",
    "tie-break": "both conventions looked right, and the larger separation only proposes one",
}

_FOUND_BEFORE_RUNNING = {
    "key-value-cache": 0,
    "changed-files": 1,
    "limits-too-small": 2,
    "unknown-tensor": 3,
    "unfit-tensor": 3,
}
"""The step that refuses for a reason of which no evidence object tells."""

_WARM_UP = 4


def words(convention: str | None) -> str:
    """A convention as a person says it."""
    return convention.replace("_", " ") if convention else "none"


def decided_by(report: ValidationReport) -> str:
    """How the convention was picked out, with what that means."""
    if report.decided_by is None:
        return "nothing"
    proof = (
        "the proof by dependence bears it out" if report.verdict == "proved" else "the engine is refused for all that"
    )
    return f"{report.decided_by}: {_DECIDED_BY[report.decided_by]}; {proof}"


def facts(report: ValidationReport) -> tuple[tuple[str, str], ...]:
    """What stands beside the verdict, as names and values."""
    limits = report.limits
    refused = () if report.verdict == "proved" else (("reason", report.reason),)
    return (
        *refused,
        ("gather convention", words(report.convention)),
        ("decided by", decided_by(report)),
        ("backend", f"{report.backend}, {report.dtype}"),
        (
            "one batch holds",
            f"{limits.max_batch_size:,} sequences, {limits.max_num_tokens:,} tokens, {limits.max_input_len:,} tokens a "
            "sequence",
        ),
        ("engine", report.engine_id),
        ("model key", report.model_key),
    )


def overview(report: ValidationReport) -> Section:
    """Every step, in order, and where it ended."""
    steps = _steps(report)
    stopped = _stopped_at(report, steps)
    rows = []
    for i, step in enumerate(steps):
        if i == stopped:
            state, found = Cell("refused", Mark.BAD), report.sentence
        elif step.passed:
            state, found = Cell("passed", Mark.GOOD), step.found
        elif stopped is not None and i > stopped:
            state, found = Cell("not reached", Mark.QUIET), ""
        else:
            state, found = Cell("not done", Mark.QUIET), step.otherwise
        rows.append(row(step.name, state, found))
    passed = sum(r[1].mark is Mark.GOOD for r in rows)
    lead = f"{passed} steps passed."
    if stopped is not None:
        lead = f"{passed} steps passed; the engine was refused at “{steps[stopped].name}”."
    return Section("steps", "What was checked", lead, (Table(("step", "came to", "what was seen"), tuple(rows)),))


@dataclass(frozen=True)
class _Step:
    name: str
    passed: bool | None
    """None where nothing was found out."""
    found: str = ""
    otherwise: str = ""
    """Why it was not done, where that is no fault."""


def _steps(report: ValidationReport) -> list[_Step]:
    ran = report.warm_up
    bound = bool(report.bindings)
    shapes = report.dependence
    micro = tuple(d for d in shapes if d.micro)
    large = tuple(d for d in shapes if not d.micro)
    detection, read, order, placed = report.detection, report.input_check, report.order_check, report.placement
    samples, head, states = report.samples, report.head, report.states
    recorded = "every file has the digest recorded when the engine was built"
    if not report.origin.checkpoint_digest:
        recorded = "nothing was recorded: the engine was not built here"
    return [
        _Step("one raw forward pass", bound or None, "no key-value cache, packed tokens, one device"),
        _Step("files as built", bound or None, recorded),
        _Step("room for the micro-batch", bound or None, "the limits hold guard, A, B, guard"),
        _Step(
            "every tensor understood",
            ran or None,
            f"{len(report.bindings)} tensors, each with a role and a place",
        ),
        _Step("warm-up", ran or None, "one-token sequences ran in every profile"),
        _Step(
            "states within range",
            None if states is None else states.reason is None,
            "" if states is None or states.reason else _greatest_state(report),
            f"not asked of {report.dtype}, or the backend shows no layers",
        ),
        _Step(
            "convention found",
            None if detection is None else detection.reason is None,
            "" if detection is None or detection.reason else f"{words(detection.convention)}, {detection.decided_by}",
        ),
        _Step(
            "input read",
            None if read is None else read.reason is None,
            ""
            if read is None
            else f"changing every token moved the checksum by {measure(max(read.moved_percent))} %; needed "
            f"{read.required_percent:g} %",
        ),
        _Step("dependence, small batch", _all_hold(micro), _dependence(micro)),
        _Step(
            "order of tokens read",
            None if order is None else order.reason is None,
            ""
            if order is None
            else f"reversing the tokens before the last moved the vector by {measure(max(order.moved))} noise floors",
            "the limits hold no sequence of three tokens",
        ),
        _Step(
            "same vector anywhere in a pack",
            None if placed is None else placed.reason is None,
            ""
            if placed is None
            else f"in a reversed batch {apart(placed.reversed_order)}; alone {apart(placed.alone)}; at most "
            f"{placed.tolerance:.2g} apart",
        ),
        _Step("dependence, up to every limit", _all_hold(large), _dependence(large)),
        _Step(
            "sample probes",
            None if samples is None else samples.reason is None,
            ""
            if samples is None or samples.reason
            else f"{apart(max(p.apart for p in samples.probes))}, between alone and in a full pack",
        ),
        _Step(
            "language-model head",
            None if head is None else head.reason is None,
            ""
            if head is None or head.reason
            else f"at most {max(s.distance for s in head.samples):.2g} from a float64 forward pass of the checkpoint",
            "the checkpoint was not at hand",
        ),
    ]


def _stopped_at(report: ValidationReport, steps: list[_Step]) -> int | None:
    if report.verdict == "proved":
        return None
    told = next((i for i, step in enumerate(steps) if step.passed is False), None)
    if told is not None:
        return told
    if report.reason in _FOUND_BEFORE_RUNNING:
        return _FOUND_BEFORE_RUNNING[report.reason]
    # It failed while running, so at the first step that left nothing; those that may be left out do not count.
    return next((i for i, s in enumerate(steps) if i >= _WARM_UP and s.passed is None and not s.otherwise), _WARM_UP)


def _all_hold(shapes: tuple[Dependence, ...]) -> bool | None:
    return all(d.reason is None for d in shapes) if shapes else None


def _dependence(shapes: tuple[Dependence, ...]) -> str:
    if not shapes:
        return ""
    failed = next((d for d in shapes if d.reason), None)
    if failed is not None:
        return str(failed.sentence)
    changes = sum(len(d.experiments) for d in shapes)
    largest = max(shapes, key=lambda d: d.n_tokens)
    return (
        f"{changes} changes of tokens moved what they must and nothing else; up to {largest.n_sequences:,} sequences "
        f"and {largest.n_tokens:,} tokens"
    )


def _greatest_state(report: ValidationReport) -> str:
    assert report.states is not None
    layer = max(report.states.layers, key=lambda s: s.greatest)
    return f"greatest {measure(layer.greatest)}, in {layer.name}; {report.dtype} ends at {report.states.largest:.6g}"
