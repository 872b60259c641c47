"""A probe file -> its rows as fields, or as what is wrong with them, whatever the file's format.

Contract: one `Row` for every row of the file, in order, from any indexed row on; a bad row never ends the iteration.
A file that can't be read as a whole raises `ProbeFileError`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from resources.errors import ProbeFileError
from resources.probe_files.probe_set import FileFormat, ProbeFormat
from resources.probe_files.raw_rows import MAX_ROW_BYTES, RawRow, raw_rows

_FIELDS_SHOWN = 20

_PARQUET_BATCH_ROWS = 1024


class Fault(NamedTuple):
    """Why a row gives no probe: a stable code, and a sentence about this row."""

    reason: str
    detail: str


class Row(NamedTuple):
    """One row: its fields, or its fault."""

    number: int
    """Source row."""
    offset: int
    """Where it begins in bytes; 0 in a Parquet file."""
    fields: Mapping[str, Any]
    """Empty when the row has a fault. A value that can't be read is a `Fault` of its own."""
    fault: Fault | None


def read_rows(
    path: Path,
    kind: FileFormat,
    wanted: ProbeFormat,
    *,
    first_row: int = 0,
    byte_offset: int = 0,
    ids_only: bool = False,
) -> Iterator[Row]:
    """The rows of `path` from `first_row` on, which begins at `byte_offset`.

    `ids_only` leaves out of a Parquet row all but its id.
    """
    if kind == "parquet":
        columns = [wanted.id_field] if ids_only and wanted.id_field else [] if ids_only else list(wanted.named_fields)
        yield from _parquet_rows(path, columns, first_row)
        return
    with _readable(path), path.open("rb") as handle:
        match kind:
            case "jsonl":
                yield from _jsonl_rows(raw_rows(handle, number=first_row, offset=byte_offset, quoted=False))
            case "text":
                lines = raw_rows(handle, number=first_row, offset=byte_offset, quoted=False)
                yield from (_text_row(line, wanted.text_field) for line in lines)
            case "csv":
                header, start = _csv_header(handle, path)
                yield from _csv_rows(handle, header, first_row, byte_offset or start)


def field_names(path: Path, kind: FileFormat) -> list[str] | None:
    """The fields that the file's schema or header declares, in order; None where each row has fields of its own."""
    match kind:
        case "parquet":
            with _readable(path):
                return pq.read_schema(path).names
        case "csv":
            with _readable(path), path.open("rb") as handle:
                return _csv_header(handle, path)[0]
        case _:
            return None


def check_parquet_types(path: Path, wanted: ProbeFormat) -> None:
    """Refuses a Parquet file whose wanted columns can never hold what they must."""
    with _readable(path):
        schema = pq.read_schema(path)
    for name in wanted.named_fields:
        kind = _value_type(schema.field(name).type)
        if name == wanted.token_ids_field:
            fits = _is_list(kind) and pa.types.is_integer(kind.value_type)
            expected = "a list of integers"
        elif name == wanted.messages_field:
            fits = _is_text(kind) or (_is_list(kind) and _is_message(kind.value_type))
            expected = "a list of structs of the strings role and content"
        else:
            fits = _is_text(kind) or (name == wanted.id_field and pa.types.is_integer(kind))
            expected = "a string or an integer" if name == wanted.id_field else "a string"
        if not fits:
            raise ProbeFileError(f"{path}: column {name!r} is {kind}; expected {expected}; name another column")


def listed(names: Sequence[str]) -> str:
    """Field names for a message."""
    more = len(names) - _FIELDS_SHOWN
    return ", ".join(ascii(n)[1:-1] for n in names[:_FIELDS_SHOWN]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise ProbeFileError(
            f"{path} cannot be read: {error}; mend it, make it readable, or say what it is with --format"
        ) from error


def _jsonl_rows(lines: Iterator[RawRow]) -> Iterator[Row]:
    for line in lines:
        if line.data is None or line.data.strip():
            yield Row(line.number, line.offset, *_json_object(line))


def _json_object(line: RawRow) -> tuple[Mapping[str, Any], Fault | None]:
    text = _decoded(line)
    if isinstance(text, Fault):
        return {}, text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for an integer of more than 4,300 digits
        return {}, Fault("invalid-json", str(error))
    if not isinstance(value, dict):
        return {}, Fault("not-an-object", f"the line is a JSON {type(value).__name__}; expected an object")
    return value, None


def _text_row(line: RawRow, text_field: str) -> Row:
    text = _decoded(line)
    if isinstance(text, Fault):
        return Row(line.number, line.offset, {}, text)
    return Row(line.number, line.offset, {text_field: text}, None)


def _decoded(row: RawRow) -> str | Fault:
    if row.data is None:
        return _too_long(row.size)
    try:
        return row.data.decode()
    except UnicodeDecodeError as error:
        return Fault("invalid-utf8", f"byte {error.start} of the row: {error.reason}")


def _too_long(size: int) -> Fault:
    return Fault("row-too-long", f"the row has {size:,} bytes; at most {MAX_ROW_BYTES:,} are read")


def _csv_header(handle: io.BufferedReader, path: Path) -> tuple[list[str], int]:
    """The names of the header and where the record after it begins."""
    for record in raw_rows(handle, number=0, offset=0, quoted=True):
        if record.data == b"":
            continue
        text = _decoded(record)
        names = _csv_fields(text) if isinstance(text, str) else text
        if isinstance(names, Fault):
            raise ProbeFileError(f"{path}: its header cannot be read: {names.detail}; mend it")
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise ProbeFileError(f"{path}: its header names {listed(sorted(twice))} more than once; rename a column")
        return names, record.offset + record.size
    raise ProbeFileError(f"{path} is empty; expected a header and a row for each probe")


def _csv_rows(handle: io.BufferedReader, header: list[str], number: int, offset: int) -> Iterator[Row]:
    for record in raw_rows(handle, number=0, offset=offset, quoted=True):
        if record.data != b"":
            yield Row(number, record.offset, *_csv_object(record, header))
            number += 1


def _csv_object(record: RawRow, header: list[str]) -> tuple[Mapping[str, Any], Fault | None]:
    text = _decoded(record)
    if record.unclosed:
        return {}, Fault("unclosed-quote", f"a quote opens in this row and none closes it in {record.size:,} bytes")
    values = _csv_fields(text) if isinstance(text, str) else text
    if isinstance(values, Fault):
        return {}, values
    if len(values) != len(header):
        return {}, Fault("ragged-row", f"the row has {len(values)} fields; the header has {len(header)}")
    return dict(zip(header, values, strict=True)), None


def _csv_fields(record: str) -> list[str] | Fault:
    # The limit is the whole process's, and its default (131,072) is under what a text may have.
    if csv.field_size_limit() < MAX_ROW_BYTES:
        csv.field_size_limit(MAX_ROW_BYTES)
    try:
        return next(csv.reader([record]))
    except csv.Error as error:
        return Fault("invalid-csv", str(error))


def _parquet_rows(path: Path, columns: list[str], first_row: int) -> Iterator[Row]:
    with _readable(path), pq.ParquetFile(path, pre_buffer=False) as file:
        if not columns:
            yield from (Row(n, 0, {}, None) for n in range(first_row, file.metadata.num_rows))
            return
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        group = start = 0
        while group < len(sizes) and start + sizes[group] <= first_row:
            start += sizes[group]
            group += 1
        if group == len(sizes):  # pyarrow 18 can't iterate over none
            return
        for batch in file.iter_batches(_PARQUET_BATCH_ROWS, row_groups=range(group, len(sizes)), columns=columns):
            wanted = batch.slice(min(max(first_row - start, 0), batch.num_rows))
            start += batch.num_rows
            if wanted.num_rows:
                yield from _batch_rows(wanted, start - wanted.num_rows)


def _batch_rows(batch: pa.RecordBatch, number: int) -> Iterator[Row]:
    values = [_python_values(column) for column in batch.columns]
    for row in zip(*values, strict=True):
        yield Row(number, 0, dict(zip(batch.schema.names, row, strict=True)), None)
        number += 1


def _python_values(column: pa.Array) -> list[Any]:
    """Text is taken as bytes: Arrow doesn't check a Parquet file's UTF-8, and one bad value must not cost a batch."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type):
        return [_decoded_value(value) for value in column.cast(pa.large_binary()).to_pylist()]
    if _is_list(column.type) and _is_message(column.type.value_type):
        return [
            _decoded_messages(value) for value in column.cast(pa.list_(_as_bytes(column.type.value_type))).to_pylist()
        ]
    return column.to_pylist()


def _as_bytes(struct: pa.StructType) -> pa.StructType:
    return pa.struct([f.with_type(pa.large_binary()) if _is_text(f.type) else f for f in struct])


def _decoded_messages(messages: list[Any] | None) -> Any:
    """Each struct with its text decoded, or what is wrong with one of them."""
    decoded = [m and {name: _decoded_value(value) for name, value in m.items()} for m in messages or ()]
    faults = (value for message in decoded if message for value in message.values() if isinstance(value, Fault))
    return next(faults, None if messages is None else decoded)


def _decoded_value(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    if len(value) > MAX_ROW_BYTES:
        return _too_long(len(value))
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        return Fault("invalid-utf8", f"byte {error.start} of the value: {error.reason}")


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    is_a = pa.types
    strings = is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind)
    return strings or is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_binary_view(kind)


def _is_message(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    texts = {field.name for field in kind if _is_text(field.type)}
    return {"role", "content"} <= texts


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
