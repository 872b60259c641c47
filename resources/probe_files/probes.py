"""A row -> its probe, or the refusal that says why there is none.

Contract: an id belongs to the first row of the set that carries it, whatever becomes of that row. The id is judged
before the text, so that a refusal carries it wherever it is known. A text is kept as it is: one of white space or of
control characters is a text, since it has tokens; only an empty one is refused.
"""

from __future__ import annotations

import json
from typing import Any

from resources.probe_files.probe_set import ProbeFormat, Source
from resources.probe_files.rows import Fault, Row, listed
from resources.records import Message, Probe, Refusal

STAGE = "probe_sets"

REASONS = {
    "invalid-utf8": "the row's bytes are not UTF-8",
    "invalid-json": "the line is not JSON",
    "not-an-object": "the line is JSON but no object",
    "invalid-csv": "the record breaks the rules of CSV",
    "ragged-row": "the record has more or fewer fields than the header",
    "unclosed-quote": "a quoted field runs to the end of the file",
    "row-too-long": "the row is longer than what is read of one",
    "missing-id": "the id field is absent or null",
    "invalid-id": "the id is neither a string nor an integer, or can't be written as UTF-8",
    "empty-id": "the id is an empty string",
    "duplicate-id": "an earlier row of the set has this id",
    "missing-text": "the text field is absent or null",
    "text-not-a-string": "the text field holds something else than a string",
    "empty-text": "the text is an empty string",
    "lone-surrogate": "the text holds half of a surrogate pair, which can't be written as UTF-8",
    "missing-token-ids": "the token ids field is absent or null",
    "invalid-token-ids": "the token ids are not a list of one or more integers from 0 to 2**31 - 1",
    "missing-messages": "the messages field is absent or null",
    "invalid-messages": "the messages are not a list of one or more objects of a role and a content, both strings",
}
"""Every reason for which a row is refused here."""

_MAX_TOKEN_ID = 2**31 - 1


def probe_or_refusal(
    row: Row, *, part: str, source: Source, wanted: ProbeFormat, first_place: str | None
) -> Probe | Refusal:
    """What becomes of `row`. `first_place` says where its id was seen first, when that was an earlier row."""
    probe_id = row_id(row, source, wanted)
    known = "" if isinstance(probe_id, Fault) else probe_id

    def refusal(fault: Fault) -> Refusal:
        return Refusal(part, STAGE, known, fault.reason, fault.detail, source.uri, row.number)

    if row.fault:
        return refusal(row.fault)
    if isinstance(probe_id, Fault):
        return refusal(probe_id)
    if first_place is not None:
        return refusal(Fault("duplicate-id", f"the first row with this id is {first_place}"))
    if wanted.token_ids_field:
        ids = _token_ids(row.fields.get(wanted.token_ids_field), wanted.token_ids_field)
        if isinstance(ids, Fault):
            return refusal(ids)
        return Probe(part, probe_id, None, ids, source.uri, row.number)
    if wanted.messages_field:
        messages = _messages(row.fields.get(wanted.messages_field), wanted.messages_field)
        if isinstance(messages, Fault):
            return refusal(messages)
        return Probe(part, probe_id, None, None, source.uri, row.number, messages)
    text = _text(row.fields.get(wanted.text_field), wanted.text_field)
    if isinstance(text, Fault):
        return refusal(text)
    return Probe(part, probe_id, text, None, source.uri, row.number)


def row_id(row: Row, source: Source, wanted: ProbeFormat) -> str | Fault:
    """The row's probe id, given or derived, or why it has none."""
    if wanted.id_field is None:
        return f"{source.name}:{row.number}"
    if row.fault:
        return row.fault
    value = row.fields.get(wanted.id_field)
    if isinstance(value, Fault):
        return value
    if value is None:
        return Fault("missing-id", f"field {wanted.id_field!r} is absent or null")
    if value == "":
        return Fault("empty-id", f"field {wanted.id_field!r} is an empty string")
    if isinstance(value, str):
        return value if _encodable(value) else Fault("invalid-id", f"{value!a} can't be written as UTF-8")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return Fault(
        "invalid-id", f"field {wanted.id_field!r} is a {type(value).__name__}; expected a string or an integer"
    )


def _text(value: Any, field: str) -> str | Fault:
    if isinstance(value, Fault):
        return value
    if value is None:
        return Fault("missing-text", f"field {field!r} is absent or null")
    if not isinstance(value, str):
        return Fault("text-not-a-string", f"field {field!r} is a {type(value).__name__}")
    if not value:
        return Fault("empty-text", f"field {field!r} is an empty string")
    if not _encodable(value):
        return Fault("lone-surrogate", f"field {field!r} can't be written as UTF-8")
    return value


def _token_ids(value: Any, field: str) -> tuple[int, ...] | Fault:
    if value is None:
        return Fault("missing-token-ids", f"field {field!r} is absent or null")
    if isinstance(value, str):  # a CSV field can only spell a list
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            return Fault("invalid-token-ids", f"field {field!r} spells no JSON list: {error}")
    if not isinstance(value, list):
        return Fault("invalid-token-ids", f"field {field!r} is a {type(value).__name__}; expected a list of integers")
    if not value:
        return Fault("invalid-token-ids", f"field {field!r} is an empty list")
    for index, token in enumerate(value):
        if type(token) is not int or not 0 <= token <= _MAX_TOKEN_ID:
            return Fault("invalid-token-ids", f"token {index} of field {field!r} is {ascii(token)[:40]}")
    return tuple(value)


def _messages(value: Any, field: str) -> tuple[Message, ...] | Fault:
    if isinstance(value, Fault):
        return value
    if value is None:
        return Fault("missing-messages", f"field {field!r} is absent or null")
    if isinstance(value, str):  # a CSV field can only spell a list
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            return Fault("invalid-messages", f"field {field!r} spells no JSON list: {error}")
    if not isinstance(value, list) or not value:
        seen = "an empty list" if value == [] else f"a {type(value).__name__}"
        return Fault("invalid-messages", f"field {field!r} is {seen}; expected a list of messages")
    messages: list[Message] = []
    for index, item in enumerate(value):
        message = _message(item, f"message {index} of field {field!r}")
        if isinstance(message, Fault):
            return message
        messages.append(message)
    return tuple(messages)


def _message(value: Any, where: str) -> Message | Fault:
    if not isinstance(value, dict):
        return Fault("invalid-messages", f"{where} is a {type(value).__name__}; expected an object")
    # A Parquet struct has every field in every row, and null where a message has none.
    given = {key: part for key, part in value.items() if part is not None}
    if given.keys() != {"role", "content"}:
        return Fault("invalid-messages", f"{where} has {listed(list(given)) or 'nothing'}; expected role and content")
    for key, part in given.items():
        if isinstance(part, Fault):
            return part
        if not isinstance(part, str):
            return Fault("invalid-messages", f"{key} of {where} is a {type(part).__name__}; expected a string")
        if not _encodable(part):
            return Fault("lone-surrogate", f"{key} of {where} can't be written as UTF-8")
    if not given["role"]:
        return Fault("invalid-messages", f"role of {where} is an empty string")
    return Message(given["role"], given["content"])


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
