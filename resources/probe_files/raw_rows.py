"""Bytes of a line-based file -> the bytes of each row, without reading the file into memory.

Contract: a row is a line that ends with a newline, or at the end of the file; in a CSV file a newline inside a quoted
field doesn't end it. Reading from any row's offset gives the same rows as reading from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO

MAX_ROW_BYTES = 16 << 20
"""A longer row is refused; its bytes are passed over without being held."""

_PIECE_BYTES = 1 << 20

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as it stands in the file, without its line ending."""

    number: int
    offset: int
    """Where it begins, in bytes."""
    size: int
    """Bytes, line ending included."""
    data: bytes | None
    """None when it is longer than MAX_ROW_BYTES."""
    unclosed: bool = False
    """The file ends inside a quoted field."""


def raw_rows(handle: BinaryIO, *, number: int, offset: int, quoted: bool) -> Iterator[RawRow]:
    """The rows from `offset` on, counted from `number`; `quoted` keeps quoted newlines inside a row.

    A byte order mark at the start of the file is passed over.
    """
    handle.seek(offset)
    if offset == 0 and handle.read(len(_BOM)) != _BOM:
        handle.seek(0)
    start, size, held = handle.tell(), 0, bytearray()
    quotes = _Quotes() if quoted else None
    while piece := handle.readline(_PIECE_BYTES):
        size += len(piece)
        if size <= MAX_ROW_BYTES:
            held += piece
        still_open = quotes is not None and quotes.open_after(piece)
        if piece.endswith(b"\n") and not still_open:
            yield RawRow(number, start, size, _content(held, size))
            number, start, size, held = number + 1, start + size, 0, bytearray()
            quotes = _Quotes() if quoted else None
    if size:
        unclosed = quotes is not None and quotes.state is _State.QUOTED
        yield RawRow(number, start, size, _content(held, size), unclosed)


def _content(held: bytearray, size: int) -> bytes | None:
    if size > MAX_ROW_BYTES:
        return None
    return bytes(held.removesuffix(b"\n").removesuffix(b"\r"))


class _State(Enum):
    FIELD_START = 1
    UNQUOTED = 2
    QUOTED = 3
    QUOTE_IN_QUOTED = 4


class _Quotes:
    """Follows quotes as the `csv` module's default dialect does: a quote opens a field only as its first character."""

    def __init__(self) -> None:
        self.state = _State.FIELD_START

    def open_after(self, piece: bytes) -> bool:
        """Whether a quoted field is open at the end of the next piece of a record."""
        at, state = 0, self.state
        while at < len(piece):
            match state:
                case _State.QUOTED:
                    found = piece.find(b'"', at)
                    at, state = (len(piece), state) if found < 0 else (found + 1, _State.QUOTE_IN_QUOTED)
                case _State.UNQUOTED:
                    found = piece.find(b",", at)
                    at, state = (len(piece), state) if found < 0 else (found + 1, _State.FIELD_START)
                case _:
                    match piece[at : at + 1]:
                        case b'"':
                            state = _State.QUOTED
                        case b",":
                            state = _State.FIELD_START
                        case _:
                            state = _State.UNQUOTED
                    at += 1
        self.state = state
        return state is _State.QUOTED
