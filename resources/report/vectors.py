"""The sections of the vectors themselves: sample probes, packs, the language-model head, the layers."""

from __future__ import annotations

from resources.proof.validation import HeadSample, SampleProbe, ValidationReport
from resources.report import svg
from resources.report.view import Cell, Mark, Plot, Section, Table, apart, measure, quoted, row, visible, yes_no


def samples(report: ValidationReport) -> Section | None:
    """The tokens of the sample probes with the gathered one marked."""
    check = report.samples
    if check is None or not check.probes:
        return None
    lead = (
        "Fixed texts, as this engine's tokenizer and policy make tokens of them. The vector of a probe is the state at "
        "the marked token. The last column exchanges each token alone: every one that the vector can see may move it."
    )
    return Section("samples", "Which token a vector belongs to", lead, tuple(_tokens(p) for p in check.probes))


def _tokens(probe: SampleProbe) -> Table:
    most = max(t.moved for t in probe.tokens) or 1.0
    rows = []
    for i, token in enumerate(probe.tokens):
        gathered = i == probe.gathered
        mark = Mark.CHOSEN if gathered else None
        rows.append(
            row(
                str(i),
                str(token.token_id),
                Cell(visible(token.text), mark),
                Cell("◀ the vector is read here", mark) if gathered else "",
                Cell(measure(token.moved), share=min(1.0, token.moved / most)),
            )
        )
    cut = ", of which the beginning fits this engine" if probe.cut else ""
    return Table(
        ("index", "id", "token", "gathered", "moves the vector by"),
        tuple(rows),
        caption=f"{quoted(probe.text)}{cut}",
        code=(0, 1, 2),
    )


def packs(report: ValidationReport) -> Section | None:
    """How much a vector depends on its company."""
    check, placed = report.samples, report.placement
    if placed is None:
        return None
    tables, lead = [], ""
    if check is not None and check.probes:
        farthest = max(p.apart for p in check.probes)
        kept = "kept" if farthest <= check.tolerance else "NOT kept"
        lead = (
            f"A sample probe alone and in a full pack of {check.n_sequences:,} sequences, {check.n_tokens:,} tokens: "
            f"{apart(farthest)}, as a share of the vector's length. The table's tolerance, {check.tolerance:g}, is "
            f"{kept}."
        )
        tables.append(
            Table(
                ("sample probe", "length of its vector", "alone to packed", "tolerance", "within"),
                tuple(
                    row(
                        quoted(p.text),
                        f"{p.norm:.5g}",
                        apart(p.apart),
                        f"{check.tolerance:g}",
                        yes_no(p.apart <= check.tolerance),
                    )
                    for p in check.probes
                ),
            )
        )
    if placed.reason:
        lead = f"Refused: {placed.sentence}."
    plots = []
    if placed.norms:
        same = " In the reversed batch each is the same, bit for bit." if not any(placed.distances) else ""
        plots.append(
            Plot(
                svg.distribution(placed.norms, unit="length of a vector"),
                f"The lengths (Euclidean norms) of the vectors of the most crowded batch.{same}",
            )
        )
    if any(placed.distances):
        plots.append(
            Plot(
                svg.distribution(placed.distances, unit="relative distance"),
                "How far each of those vectors is from the same sequence's in the reversed batch; gross differences, "
                f"beyond {placed.tolerance:.2g}, are refused.",
            )
        )
    lead = lead or "The same sequences in another order, and alone."
    return Section("packs", "The same vector in any pack", lead, tuple(tables), tuple(plots))


def head(report: ValidationReport) -> Section | None:
    """What the language-model head says of the engine's vectors and of the reference's."""
    check = report.head
    if check is None:
        return None
    lead = (
        "A forward pass in numpy and float64, which shares the checkpoint's reader with the engine's graph and no "
        "other code, gives the reference. The checkpoint's language-model head is applied to both vectors. "
    )
    if check.reason:
        lead += f"Refused: {check.sentence}."
    else:
        far = max(s.distance for s in check.samples)
        lead += f"The vectors are at most {far:.2g} apart (tolerance {check.tolerance:g}), and the next tokens agree."
    return Section("head", "What the language-model head says", lead, tuple(_next_tokens(s) for s in check.samples))


def _next_tokens(sample: HeadSample) -> Table:
    rows = [
        row(
            Cell(visible(t.text), Mark.CHOSEN if i == 0 else None),
            str(t.token_id),
            f"{t.reference:.4f}",
            f"{t.engine:.4f}",
            f"{abs(t.reference - t.engine):.2g}",
            Cell("first for both", Mark.GOOD)
            if i == 0 and t.token_id == sample.engine_top
            else Cell("first for the engine", Mark.BAD)
            if t.token_id == sample.engine_top
            else "",
        )
        for i, t in enumerate(sample.next_tokens)
    ]
    return Table(
        ("next token", "id", "logit of the reference", "logit of the engine", "difference", ""),
        tuple(rows),
        caption=f"After {quoted(sample.text)}: vectors {apart(sample.distance)}, no token's logits more than "
        f"{measure(sample.greatest_difference)}",
        code=(0, 1),
    )


def layers(report: ValidationReport) -> Section | None:
    """The states after each layer against the range of the dtype."""
    check = report.states
    if check is None:
        return None
    broken = [s for s in check.layers if s.non_finite]
    lead = "Run on the sample probes with every layer's output exposed. "
    if broken:
        lead += f"Refused: {check.sentence}."
    else:
        greatest = max(s.greatest for s in check.layers)
        lead += f"{report.dtype} ends at {check.largest:.6g}. The greatest state is {greatest:.4g}; all are finite."
    table = Table(
        ("after", "elements", "not finite", "greatest finite"),
        tuple(
            row(
                s.name,
                f"{s.elements:,}",
                Cell(f"{s.non_finite:,}", Mark.BAD if s.non_finite else Mark.GOOD),
                f"{s.greatest:.5g}",
            )
            for s in check.layers
        ),
        code=(0,),
    )
    values = [
        svg.Value(
            s.name,
            s.greatest,
            Mark.BAD if s.non_finite else Mark.CHOSEN,
            measure(s.greatest) + (f", {s.non_finite:,} not finite" if s.non_finite else ""),
        )
        for s in check.layers
    ]
    plot = Plot(
        svg.logarithmic(values, ((check.largest, f"end of {report.dtype}"),), unit="magnitude"),
        "The greatest finite magnitude after each layer.",
    )
    return Section("layers", "States inside the engine", lead, (table,), (plot,))
