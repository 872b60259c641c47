"""The sections of the gather convention: what the micro-batch showed, what moves what, and what the engine reads."""

from __future__ import annotations

from collections.abc import Iterator

from resources.proof.validation import MICRO_READ_FIRST, A, B, Dependence, DetectionTrial, Experiment, ValidationReport
from resources.proof.vectors import MOVED
from resources.report import svg
from resources.report.overview import decided_by, words
from resources.report.view import Cell, Mark, Plot, Section, Table, measure, row, yes_no


def convention(report: ValidationReport) -> Section | None:
    """The micro-batch under both conventions."""
    detection = report.detection
    if detection is None:
        return None
    lead = (
        "The micro-batch is guard [t], A [t], B [t, u], guard [t]. The right convention reads t for A and u for B: two "
        "different vectors. An index off by one reads t twice: the same vector. "
    )
    if detection.reason:
        lead += f"Refused: {detection.sentence}."
    else:
        lead += f"Found: {words(detection.convention)}, by {decided_by(report)}."
    rows = [r for trial in detection.trials for r in _trial_rows(trial, detection.convention)]
    table = Table(
        (
            "tokens t, u",
            "convention",
            "ids sent",
            "fingerprints: guard, A, B, guard",
            "A to B",
            "in floors",
            "consistent",
        ),
        tuple(rows),
        code=(0, 2, 3),
    )
    values = [
        svg.Value(
            words(c.convention) if len(detection.trials) == 1 else f"pair {i + 1}, {words(c.convention)}",
            c.separation / trial.noise_floor,
            Mark.CHOSEN if c.convention == detection.convention else Mark.QUIET,
        )
        for i, trial in enumerate(detection.trials)
        for c in trial.conventions
    ]
    plot = Plot(
        svg.logarithmic(values, _FLOORS, unit="noise floors"),
        "How far A's vector is from B's. Up to one noise floor is the same vector; a convention is consistent beyond "
        f"{MOVED:g}.",
    )
    return Section("conventions", "The gather convention", lead, (table,), (plot,))


_FLOORS = ((1.0, "noise"), (MOVED, "moved"))


def _trial_rows(trial: DetectionTrial, chosen: str | None) -> Iterator[tuple[Cell, ...]]:
    for c in trial.conventions:
        mark = Mark.CHOSEN if c.convention == chosen else None
        yield row(
            f"{trial.tokens[0]}, {trial.tokens[1]}",
            Cell(words(c.convention), mark),
            ", ".join(map(str, c.last_token_ids)),
            ", ".join(f"{f:.6g}" for f in c.fingerprints),
            measure(c.separation),
            measure(c.separation / trial.noise_floor),
            yes_no(c.consistent) if c.consistent else Cell("no", Mark.QUIET),
        )


def dependence(report: ValidationReport) -> Section | None:
    """Which token was changed, which vectors moved, and by how much; small and then up to every limit."""
    if not report.dependence:
        return None
    micro = [d for d in report.dependence if d.micro]
    broken = next((d for d in report.dependence if d.reason), None)
    lead = (
        "A vector must move when a token that it can see changes, and must not when any other does. Distances are in "
        f"noise floors: at most 1 is unmoved, more than {MOVED:g} is moved, and between the two is a refusal. "
    )
    lead += f"Refused: {broken.sentence}." if broken else "Everything that must move did, and nothing else."
    tables = [_exchanges(micro), _shapes(report.dependence)]
    if any(e.wrong for d in report.dependence for e in d.experiments):
        tables.append(_wrong(report.dependence))
    return Section("dependence", "Proof by dependence", lead, tuple(tables), _matrices(micro))


def _matrices(micro: list[Dependence]) -> tuple[Plot, ...]:
    rows, cells = [], []
    for shape in micro:
        for experiment in shape.experiments:
            if not experiment.exchanges:
                continue
            rows.append(_changed(shape, experiment))
            cells.append([_movement(experiment, sequence) for sequence in (A, B)])
    if not rows:
        return ()
    return (
        Plot(
            svg.matrix(rows, ("A's vector", "B's vector"), cells),
            "Each row changes one token of the micro-batch; the figures are noise floors. Filled: moved, as it must. "
            "Outlined: stayed, as it must. Red: wrong.",
        ),
    )


def _changed(shape: Dependence, experiment: Experiment) -> str:
    return experiment.change + (" (B read at its first token)" if shape.shape == MICRO_READ_FIRST else "")


def _movement(experiment: Experiment, sequence: int) -> tuple[str, Mark]:
    seen = max(e.noise_floors[sequence] for e in experiment.exchanges)
    must_move = experiment.expected[sequence] == "move"
    right = seen > MOVED if must_move else seen <= 1
    return measure(seen), (Mark.GOOD if must_move else Mark.QUIET) if right else Mark.BAD


def _exchanges(micro: list[Dependence]) -> Table:
    rows = []
    for shape in micro:
        for experiment in shape.experiments:
            for exchange in experiment.exchanges:
                rows.append(
                    row(
                        _changed(shape, experiment),
                        f"{exchange.before} → {exchange.after}",
                        *(
                            _exchange(exchange.noise_floors[sequence], experiment.expected[sequence])
                            for sequence in (A, B)
                        ),
                    )
                )
    return Table(
        ("token changed", "ids", "A's vector moved", "B's vector moved"),
        tuple(rows),
        caption="Micro-batch, every exchange of one token",
        code=(1,),
    )


def _exchange(seen: float, expected: str) -> Cell:
    # One draw may fail to move what must: rows of an embedding can be equal. It has to in some draw.
    wrong = expected == "stay" and seen > 1
    return Cell(f"{measure(seen)}, must {expected}", Mark.BAD if wrong else None)


def _shapes(shapes: tuple[Dependence, ...]) -> Table:
    rows = []
    for d in shapes:
        must_move, moved = (sum(getattr(e, f) for e in d.experiments) for f in ("must_move", "moved"))
        least = [e.least_movement for e in d.experiments if e.least_movement is not None]
        stayed = [e.greatest_stay for e in d.experiments if e.greatest_stay is not None]
        rows.append(
            row(
                d.shape,
                str(d.profile),
                f"{d.n_sequences:,}",
                f"{d.n_tokens:,}",
                f"{d.longest:,}",
                str(len(d.experiments)),
                f"{moved:,} of {must_move:,}" + (f", least {measure(min(least))}" if least else ""),
                f"most {measure(max(stayed))}" if stayed else "none must",
                f"{d.noise_floor:.2g}",
                Cell("refused", Mark.BAD) if d.reason else Cell("holds", Mark.GOOD),
            )
        )
    return Table(
        ("batch", "profile", "sequences", "tokens", "longest", "changes", "must move: did", "must stay", "floor", ""),
        tuple(rows),
        caption="Every shape",
    )


def _wrong(shapes: tuple[Dependence, ...]) -> Table:
    rows = [
        row(d.shape, e.change, str(w.sequence), w.expected, Cell(measure(w.noise_floors), Mark.BAD))
        for d in shapes
        for e in d.experiments
        for w in e.wrong
    ]
    return Table(
        ("batch", "changed", "sequence", "must", "moved"), tuple(rows), caption="The first vectors that did otherwise"
    )


def reads(report: ValidationReport) -> Section | None:
    """Whether tokens, and their order, reach the vectors."""
    read, order = report.input_check, report.order_check
    if read is None:
        return None
    rows = [
        row(
            "every token changed",
            f"checksum moved by {measure(max(read.moved_percent))} %",
            f"at least {read.required_percent:g} %",
            str(len(read.moved_percent)),
            yes_no(read.reason is None),
        )
    ]
    if order is not None:
        rows.append(
            row(
                f"the order of the {order.n_tokens - 1} tokens before the last reversed",
                f"vector moved by {measure(max(order.moved))} noise floors",
                f"more than {MOVED:g}",
                str(len(order.moved)),
                yes_no(order.reason is None),
            )
        )
    lead = "The engine reads its tokens"
    lead += " and their order." if order is not None and order.reason is None else "."
    fault = read.sentence or (order.sentence if order else None)
    columns = ("change", "seen", "needed", "draws", "holds")
    return Section("input", "Input and order", f"Refused: {fault}." if fault else lead, (Table(columns, tuple(rows)),))
