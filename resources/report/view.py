"""What a report consists of before it is a page, lines or a UI's tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Mark(Enum):
    """What a cell says at a glance; never by colour alone, since `Cell.text` says it too."""

    GOOD = "good"
    BAD = "bad"
    QUIET = "quiet"
    """Neither: not reached, not asked."""
    CHOSEN = "chosen"
    """The one that is meant: the frozen convention, the gathered token."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    mark: Mark | None = None
    share: float | None = None
    """0 to 1: also drawn as a bar."""


@dataclass(frozen=True)
class Table:
    """Rows under column heads."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    code: tuple[int, ...] = ()
    """Columns whose cells are ids, tokens or digests, which read better in a fixed width."""


@dataclass(frozen=True)
class Plot:
    """A picture with what it shows in a sentence."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Section:
    """One question that the report answers."""

    name: str
    """Short and stable: a key of metadata, an anchor of a page."""
    title: str
    lead: str
    """The answer in a sentence or two."""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()


def row(*cells: str | Cell) -> tuple[Cell, ...]:
    """A table's row; a string is a cell without a mark."""
    return tuple(c if isinstance(c, Cell) else Cell(c) for c in cells)


def yes_no(value: bool) -> Cell:
    """A marked answer."""
    return Cell("yes", Mark.GOOD) if value else Cell("no", Mark.BAD)


def measure(value: float) -> str:
    """A measured number to three figures, written out where a person can take it in."""
    if 1000 <= abs(value) < 1e9:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def apart(distance: float) -> str:
    """A relative distance of two vectors."""
    return "the same, bit for bit" if distance == 0 else f"{measure(distance)} apart"


def quoted(text: str) -> str:
    """A text on one line."""
    return f"“{text.replace(chr(10), '⏎')}”"


def visible(text: str) -> str:
    """A token's text with what would not be seen made visible: spaces, line ends, controls."""
    shown = text.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown) or "(nothing)"
