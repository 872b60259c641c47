"""Writes awkward.jsonl: a probe file in which every line is odd, with what must become of each.

Run it as `python examples/make_awkward.py`; the same bytes come out every time. Read it with `--id-field id`. The first
line begins with a byte order mark; the last one ends without a newline.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).with_name("awkward.jsonl")


class Line(NamedTuple):
    """One line of the file, without its newline, and what becomes of it under the default settings."""

    data: bytes
    outcome: str
    """"vector", "blank" (no row), or the reason for which it is refused."""
    probe_id: str = ""
    """The id that the vector or the refusal carries; "" when the line gives none."""


LINES = (
    Line(b'\xef\xbb\xbf{"id": "plain", "text": "An ordinary sentence."}', "vector", "plain"),
    # Odd, but fine.
    Line(b'{"id": "crlf", "text": "The line ends in a carriage return and a newline."}\r', "vector", "crlf"),
    Line(b'  {"text": "Spaces around the object, and keys in another order.", "id": "spaced"}\t ', "vector", "spaced"),
    Line(b'{"id": 17, "text": "An integer for an id."}', "vector", "17"),
    Line(b'{"id": 123456789012345678901234567890, "text": "A large one."}', "vector", "123456789012345678901234567890"),
    Line(b'{"id": " ", "text": "An id of one space."}', "vector", " "),
    Line('{"id": "naïve/ид:№ 1", "text": "An id beyond ASCII."}'.encode(), "vector", "naïve/ид:№ 1"),
    Line(b'{"id": "letter", "text": "a"}', "vector", "letter"),
    Line(b'{"id": "space", "text": " "}', "vector", "space"),
    Line(b'{"id": "white", "text": " \\t\\n\\r\\n  "}', "vector", "white"),
    Line(b'{"id": "edges", "text": "\\n  spaces and newlines at both ends  \\n\\n"}', "vector", "edges"),
    Line(b'{"id": "nul", "text": "a NUL \\u0000 and a bell \\u0007"}', "vector", "nul"),
    Line(b'{"id": "digits", "text": "12345678901234567890"}', "vector", "digits"),
    Line('{"id": "emoji", "text": "👩‍👩‍👧‍👦 and 🇫🇮 and 👍🏽"}'.encode(), "vector", "emoji"),
    Line(b'{"id": "pair", "text": "an escaped pair: \\ud83d\\ude00"}', "vector", "pair"),
    Line('{"id": "combining", "text": "e\u0301 is not é to a tokenizer"}'.encode(), "vector", "combining"),
    Line('{"id": "cjk", "text": "速い茶色の狐がのろまな犬を飛び越える。"}'.encode(), "vector", "cjk"),
    Line('{"id": "rtl", "text": "שלום עולם، مرحبا بالعالم"}'.encode(), "vector", "rtl"),
    Line('{"id": "separators", "text": "line\u2028paragraph\u2029next\u0085line"}'.encode(), "vector", "separators"),
    Line('{"id": "bom-inside", "text": "\ufeffa byte order mark in front"}'.encode(), "vector", "bom-inside"),
    Line(b'{"id": "control-token", "text": "<|im_start|>user\\nHello<|im_end|>"}', "vector", "control-token"),
    Line(b'{"id": "code", "text": "def f(x):\\n\\treturn {\\"a\\": x[0]}  # done\\n"}', "vector", "code"),
    Line(b'{"id": "same-1", "text": "The same text under two ids."}', "vector", "same-1"),
    Line(b'{"id": "same-2", "text": "The same text under two ids."}', "vector", "same-2"),
    Line(
        b'{"id": "other-fields", "text": "Other fields.", "label": [1, {"a": null}], "n": NaN}',
        "vector",
        "other-fields",
    ),
    Line(b'{"id": "text-twice", "text": 1, "text": "The last of two equal keys counts."}', "vector", "text-twice"),
    # No rows.
    Line(b"", "blank"),
    Line(b"\r", "blank"),
    Line(b" \t ", "blank"),
    # Refused.
    Line(b'{"id": "bad-bytes", "text": "caf\xe9"}', "invalid-utf8"),
    Line(b'{"id": "overlong-slash", "text": "\xc0\xaf"}', "invalid-utf8"),
    Line(b'{"id": "surrogate-bytes", "text": "\xed\xa0\x80"}', "invalid-utf8"),
    Line(b'{"id": "cut-off", "text": "no end', "invalid-json"),
    Line(b"{'id': 'quotes', 'text': 'single ones'}", "invalid-json"),
    Line(b'{"id": "comma", "text": "one too many",}', "invalid-json"),
    Line(b'{"id": "a", "text": "two"} {"id": "b", "text": "objects"}', "invalid-json"),
    Line(b'{"id": "raw-tab", "text": "a raw\ttab"}', "invalid-json"),
    Line(b'{"id": "raw-nul", "text": "a raw \x00"}', "invalid-json"),
    Line(b'{"id": "escape", "text": "\\x41"}', "invalid-json"),
    Line(b'\xef\xbb\xbf{"id": "late-bom", "text": "A byte order mark, but not at the start."}', "invalid-json"),
    Line(b'{"id": 1' + b"0" * 5000 + b', "text": "An integer too long to read."}', "invalid-json"),
    Line(b'{"text": ' + b"[" * 20_000 + b"}", "invalid-json"),
    Line(b"An ordinary sentence, but no JSON.", "invalid-json"),
    Line(b'"An ordinary sentence."', "not-an-object"),
    Line(b'["list", "An ordinary sentence."]', "not-an-object"),
    Line(b"null", "not-an-object"),
    Line(b"42", "not-an-object"),
    Line(b'{"text": "No id."}', "missing-id"),
    Line(b'{"id": null, "text": "A null for an id."}', "missing-id"),
    Line(b"{}", "missing-id"),
    Line(b'{"id": "", "text": "An empty id."}', "empty-id"),
    Line(b'{"id": 1.5, "text": "A fraction for an id."}', "invalid-id"),
    Line(b'{"id": true, "text": "A truth value for an id."}', "invalid-id"),
    Line(b'{"id": ["list"], "text": "A list for an id."}', "invalid-id"),
    Line(b'{"id": "half-\\ud83d", "text": "Half a pair in an id."}', "invalid-id"),
    Line(b'{"id": "plain", "text": "An id seen before."}', "duplicate-id", "plain"),
    Line(b'{"id": "17", "text": "An id seen before, as an integer."}', "duplicate-id", "17"),
    Line(b'{"id": "no-text"}', "missing-text", "no-text"),
    Line(b'{"id": "no-text", "text": "An id seen before, in a row that was refused."}', "duplicate-id", "no-text"),
    Line(b'{"id": "null-text", "text": null}', "missing-text", "null-text"),
    Line(b'{"id": "upper-case", "TEXT": "The field has another name."}', "missing-text", "upper-case"),
    Line(b'{"id": "number", "text": 42}', "text-not-a-string", "number"),
    Line(b'{"id": "list", "text": ["A", "list."]}', "text-not-a-string", "list"),
    Line(b'{"id": "empty", "text": ""}', "empty-text", "empty"),
    Line(b'{"id": "high-half", "text": "half a pair: \\ud83d"}', "lone-surrogate", "high-half"),
    Line(b'{"id": "low-half", "text": "\\ude00 the other half"}', "lone-surrogate", "low-half"),
    Line(b'{"id": "over-long", "text": "' + b"word " * 3000 + b'"}', "over-long", "over-long"),
    Line(b'{"id": "last", "text": "The last line has no newline."}', "vector", "last"),
)


def main() -> None:
    TARGET.write_bytes(content())


def content() -> bytes:
    """The whole file."""
    return b"\n".join(line.data for line in LINES)


if __name__ == "__main__":
    main()
