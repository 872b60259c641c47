"""A validation report as lines for a terminal: the verdict first, then every section as aligned columns."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from textwrap import wrap

from resources.proof.validation import ValidationReport
from resources.report.overview import facts
from resources.report.sections import sections
from resources.report.view import Cell, Mark, Table

WIDTH = 110
"""Columns that running text is wrapped to; a table is as wide as it is."""

_BAR = 12
_GLYPH = {Mark.GOOD: "✓ ", Mark.BAD: "✗ "}


def lines(report: ValidationReport) -> Iterator[str]:
    """The lines, without line ends."""
    yield f"{report.verdict}: {report.sentence}"
    yield ""
    for name, value in facts(report):
        yield from wrap(f"{name:<18} {value}", WIDTH, initial_indent="  ", subsequent_indent=" " * 21)
    for section in sections(report):
        yield ""
        yield section.title.upper()
        yield from wrap(section.lead, WIDTH, initial_indent="  ", subsequent_indent="  ")
        for table in section.tables:
            yield ""
            yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield f"  {table.caption}"
    body = [[_cell(c) for c in cells] for cells in table.rows]
    heads = [list(table.columns)] if any(table.columns) else []
    widths = [max(map(_width, column)) for column in zip(*heads, *body, strict=True)]
    for cells in (*heads, *body):
        padded = (text + " " * (width - _width(text)) for text, width in zip(cells, widths, strict=True))
        yield f"    {'  '.join(padded)}".rstrip()


def _cell(cell: Cell) -> str:
    text = _GLYPH.get(cell.mark, "") + cell.text if cell.mark else cell.text
    return text if cell.share is None else f"{text:<9}{'▇' * round(_BAR * cell.share)}"


def _width(text: str) -> int:
    """Columns of a terminal: wide characters take two, and those that combine none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
