"""A validation report as Dagster metadata: the verdict, the main tables and plots, and the whole evidence as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import groupby

import dagster as dg

from resources.proof.validation import ValidationReport
from resources.report import Section, Table, sections
from resources.report.overview import decided_by, words

MAIN_TABLES = ("steps", "layers", "samples", "conventions", "dependence", "packs", "head", "contract", "bindings")
"""Sections whose tables a UI shows; the rest is in the page and in the evidence."""

PLOTS = ("layers", "conventions", "dependence", "packs")

MOST_ROWS = 200


def report_metadata(report: ValidationReport) -> dict[str, dg.MetadataValue]:
    """The verdict first; of a validation, or of the failure that a refusal is."""
    found = {s.name: s for s in sections(report)}
    return {
        "verdict": dg.MetadataValue.text(report.verdict),
        "sentence": dg.MetadataValue.text(report.sentence),
        "convention": dg.MetadataValue.text(words(report.convention)),
        "decided_by": dg.MetadataValue.text(decided_by(report)),
        "reason": dg.MetadataValue.text(report.reason),
        **{name: dg.MetadataValue.float(value) for name, value in _figures(report)},
        "plots": dg.MetadataValue.md("\n\n".join(_plots(found[name]) for name in PLOTS if name in found)),
        **{key: table for name in MAIN_TABLES if name in found for key, table in _tables(found[name])},
        "evidence": dg.MetadataValue.json(json.loads(report.to_json())),
    }


def _figures(report: ValidationReport) -> Iterator[tuple[str, float]]:
    """What the UI plots from one validation to the next."""
    if report.input_check is not None:
        yield "input_check_percent", max(report.input_check.moved_percent)
    if report.samples is not None and report.samples.probes:
        yield "alone_to_packed", max(p.apart for p in report.samples.probes)
        yield "tolerance", report.samples.tolerance
    if report.head is not None:
        yield "distance_to_float64", max(s.distance for s in report.head.samples)


def _plots(section: Section) -> str:
    """Markdown; each plot is an image that carries its own data, since the UI takes no markup of ours."""
    lines = [f"#### {section.title}", section.lead]
    for plot in section.plots:
        data = base64.b64encode(plot.svg.encode()).decode()
        lines += [f"![{plot.caption}](data:image/svg+xml;base64,{data})", f"*{plot.caption}*"]
    return "\n\n".join(lines)


def _tables(section: Section) -> Iterator[tuple[str, dg.MetadataValue]]:
    """Tables with the same columns are one, told apart by their captions."""
    alike = [list(tables) for _, tables in groupby(section.tables, key=lambda t: t.columns)]
    for tables in alike:
        key = section.name if len(alike) == 1 else f"{section.name}: {tables[0].caption}"
        records = [
            dg.TableRecord({**({"of": t.caption} if len(tables) > 1 else {}), **_named(t, i)})
            for t in tables
            for i in range(len(t.rows))
        ]
        yield key, dg.MetadataValue.table(records[:MOST_ROWS])


def _named(table: Table, index: int) -> dict[str, str]:
    return {name or "result": cell.text for name, cell in zip(table.columns, table.rows[index], strict=True)}
