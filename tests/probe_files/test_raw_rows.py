from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.probe_files import raw_rows as module
from resources.probe_files.raw_rows import raw_rows


def rows_of(content: bytes, *, number: int = 0, offset: int = 0, quoted: bool = False):
    return list(raw_rows(io.BytesIO(content), number=number, offset=offset, quoted=quoted))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\n", [b"a", b""]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"a\rb\n", [b"a\rb"]),
        (b"\xef\xbb\xbfa\nb", [b"a", b"b"]),
        (b"\xef\xbb\xbf", []),
        (b"a\n\xef\xbb\xbfb", [b"a", b"\xef\xbb\xbfb"]),
        (b'a"\nb"', [b'a"', b'b"']),
    ],
)
def test_a_row_is_a_line(content, lines):
    assert [row.data for row in rows_of(content)] == lines


@given(st.text('ab",\n', max_size=40))
def test_records_are_those_of_the_csv_module(text):
    records = rows_of(text.encode(), quoted=True)
    expected = list(csv.reader(io.StringIO(text)))
    assert len(records) == len(expected)
    closed = [row.data.decode() for row in records if not row.unclosed]
    assert [next(csv.reader([record]), []) for record in closed] == expected[: len(closed)]


@given(st.text('a",\n', max_size=40), st.booleans(), st.integers(1, 4))
def test_pieces_of_any_size_and_a_start_at_any_row_give_the_same_rows(text, quoted, piece_bytes):
    content = text.encode()
    rows = rows_of(content, quoted=quoted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE_BYTES", piece_bytes)
        for i, row in enumerate(rows):
            assert rows_of(content, number=i, offset=row.offset, quoted=quoted) == rows[i:]


def test_a_quote_that_nothing_closes_is_told():
    assert [row.unclosed for row in rows_of(b'a,b\nc,"d\ne,f\n', quoted=True)] == [False, True]


def test_a_row_that_is_too_long_is_passed_over_without_being_held(monkeypatch):
    monkeypatch.setattr(module, "MAX_ROW_BYTES", 8)
    rows = rows_of(b"12345678\n1234567\n" + b"x" * 100 + b"\nlast", quoted=True)
    assert [(row.number, row.offset, row.data) for row in rows] == [
        (0, 0, None),
        (1, 9, b"1234567"),
        (2, 17, None),
        (3, 118, b"last"),
    ]
