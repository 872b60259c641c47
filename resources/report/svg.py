"""Three kinds of plot as SVG text: values on a logarithmic axis, a distribution, a matrix.

Contract: self-contained and without script. Colours are CSS variables with fallbacks on a background of their own, so
that a plot follows the page that it is part of, and can be read alone, as an image, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from resources.report.view import Mark, measure

WIDTH = 720
_LABEL = 190
"""Width of the labels at the left."""
_ROW = 26
_TOP = 34
_LETTER = 8
"""Width of a letter, about."""
_BINS = 24

_COLOUR = {
    Mark.GOOD: "var(--good, #1a7f4b)",
    Mark.BAD: "var(--bad, #c0392b)",
    Mark.QUIET: "var(--quiet, #8a8f98)",
    Mark.CHOSEN: "var(--accent, #2456c8)",
}
_INK = "var(--ink, #1d2129)"
_FAINT = "var(--line, #d9dde3)"
_PAPER = "var(--paper, #ffffff)"


@dataclass(frozen=True)
class Value:
    """A labelled value with its colour."""

    label: str
    value: float
    mark: Mark
    text: str = ""
    """Beside the point; by default the value."""


def logarithmic(values: Sequence[Value], lines: Sequence[tuple[float, str]], *, unit: str) -> str:
    """One row for each value, on a logarithmic axis with named lines; a value of 0 stands at the left end."""
    texts = [v.text or measure(v.value) for v in values]
    right = 30 + _LETTER * max(map(len, texts))
    positive = [v.value for v in values if 0 < v.value < math.inf] + [at for at, _ in lines]
    low = math.floor(math.log10(min(positive))) - 0.5
    high = math.ceil(math.log10(max(positive))) + 0.2
    height = _TOP + _ROW * len(values) + 44
    floor = height - 44

    def x(value: float) -> float:
        exponent = min(max(math.log10(value), low), high) if value > 0 else low
        return _LABEL + (WIDTH - _LABEL - right) * (exponent - low) / (high - low)

    parts = []
    step = max(1, math.ceil((high - low) / 9))
    for exponent in range(math.ceil(low), math.floor(high) + 1, step):
        at = x(10.0**exponent)
        parts.append(_line(at, _TOP - 8, at, floor, _FAINT))
        parts.append(_text(at, floor + 16, _power(exponent), anchor="middle", faint=True))
    parts.append(_text(WIDTH - 8, floor + 36, unit, anchor="end", faint=True))
    for at, name in lines:
        parts.append(_line(x(at), _TOP - 12, x(at), floor, _INK, dashed=True))
        parts.append(_text(x(at), _TOP - 17, name, anchor="middle"))
    for i, (value, text) in enumerate(zip(values, texts, strict=True)):
        y = _TOP + _ROW * i + _ROW / 2
        colour = _COLOUR[value.mark]
        end = x(value.value)
        parts.append(_text(_LABEL - 12, y + 4, value.label, anchor="end"))
        parts.append(_line(_LABEL, y, end, y, colour, width=3))
        parts.append(f'<circle cx="{end:.1f}" cy="{y:.1f}" r="6" fill="{colour}"/>')
        parts.append(_text(end + 11, y + 4, text))
    return _svg(height, parts, "; ".join(f"{v.label}: {t} {unit}" for v, t in zip(values, texts, strict=True)))


def distribution(values: Sequence[float], *, unit: str) -> str:
    """A histogram of at least one finite value."""
    found = np.asarray(values, dtype=np.float64)
    middle = float(np.median(found))
    # Values that hardly differ would fill the axis with rounding.
    spread = max(float(np.ptp(found)), 1e-3 * abs(middle))
    low = float(found.min() + found.max() - spread) / 2
    high = low + spread
    counts, edges = np.histogram(found, bins=min(_BINS, max(6, len(found) // 4)), range=(low, high))
    height, left, bottom = 200, 30.0, 150.0
    wide = (WIDTH - 2 * left) / len(counts)
    parts = [_line(left, bottom, WIDTH - left, bottom, _INK)]
    for i, count in enumerate(counts):
        if count:
            tall = 120.0 * count / counts.max()
            x, y = left + i * wide + 1, bottom - tall
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 2:.1f}" height="{tall:.1f}" rx="2" '
                f'fill="{_COLOUR[Mark.CHOSEN]}"/>'
            )
            parts.append(_text(x + wide / 2 - 1, y - 4, str(count), anchor="middle", faint=True))
    for at, anchor in ((0, "start"), (len(counts) // 2, "middle"), (len(counts), "end")):
        parts.append(_text(left + at * wide, bottom + 18, f"{edges[at]:.4g}", anchor=anchor))
    parts.append(_text(WIDTH - left, bottom + 40, unit, anchor="end", faint=True))
    parts.append(_text(left, bottom + 40, f"least {found.min():.4g}, middle {middle:.4g}, greatest {found.max():.4g}"))
    return _svg(height, parts, f"{len(found)} values from {found.min():.4g} to {found.max():.4g} {unit}")


def matrix(rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[tuple[str, Mark]]]) -> str:
    """A grid of coloured cells with their texts; a quiet cell is only outlined."""
    label, tall = 330, 34
    wide = (WIDTH - label - 20) / len(columns)
    height = _TOP + tall * len(rows) + 8
    parts = [
        _text(label + wide * (j + 0.5), _TOP - 10, name, anchor="middle", bold=True) for j, name in enumerate(columns)
    ]
    for i, (name, line) in enumerate(zip(rows, cells, strict=True)):
        y = _TOP + tall * i
        parts.append(_text(label - 12, y + tall / 2 + 4, name, anchor="end"))
        for j, (text, mark) in enumerate(line):
            quiet = mark is Mark.QUIET
            fill = "none" if quiet else _COLOUR[mark]
            parts.append(
                f'<rect x="{label + wide * j + 2:.1f}" y="{y + 2}" width="{wide - 4:.1f}" height="{tall - 4}" rx="4" '
                f'fill="{fill}" stroke="{_FAINT if quiet else fill}"/>'
            )
            parts.append(
                _text(
                    label + wide * (j + 0.5), y + tall / 2 + 4, text, anchor="middle", colour=_INK if quiet else _PAPER
                )
            )
    return _svg(
        height, parts, "; ".join(f"{r}: {', '.join(t for t, _ in line)}" for r, line in zip(rows, cells, strict=True))
    )


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" aria-label="{escape(label)}" font-family="system-ui, sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" rx="6" fill="{_PAPER}"/>{"".join(parts)}</svg>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", faint: bool = False, bold: bool = False, colour: str = _INK
) -> str:
    fill = _COLOUR[Mark.QUIET] if faint else colour
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{weight}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False, width: int = 1) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dash}/>'


def _power(exponent: int) -> str:
    if 0 <= exponent <= 3:
        return str(10**exponent)
    digits = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{digits}"
