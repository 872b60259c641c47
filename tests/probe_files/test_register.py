from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resources.errors import ConfigurationError, ProbeFileError
from resources.probe_files import ProbeFormat, load_probe_set, read_shard, register, shard_of
from resources.records import PART_KEY, Refusal


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


WHOLE_FILE_PROBLEMS = {
    "another field": (
        "f.jsonl",
        b'{"question": 1, "answer": 2}\n',
        {},
        "fields seen: question, answer; .*--text-field",
    ),
    "another id": ("f.jsonl", b'{"text": "a"}\n', {"id_field": "id"}, "fields seen: text; .*--id-field"),
    "no token ids": ("f.jsonl", b'{"text": "a"}\n', {"token_ids_field": "ids"}, "seen: text; .*--token-ids-field"),
    "no messages": ("f.jsonl", b'{"text": "a"}\n', {"messages_field": "chat"}, "seen: text; .*--messages-field"),
    "messages of a text file": ("f.txt", b"one\n", {"messages_field": "chat"}, "without fields"),
    "no JSON at all": ("f.jsonl", b"one\ntwo\n", {}, "not one of its 2 lines is a JSON object; .*--format"),
    "no bytes": ("f.jsonl", b"", {}, "is empty"),
    "no rows": ("f.jsonl", b"\n\n", {}, "has no rows"),
    "a mark alone": ("f.txt", b"\xef\xbb\xbf", {}, "has no rows"),
    "UTF-16": ("f.txt", "one\n".encode("utf-16"), {}, "is UTF-16; expected UTF-8"),
    "unknown ending": ("f.dat", b"one\n", {}, "ends in '.dat'; known: .jsonl.*--format"),
    "fields of a text file": ("f.txt", b"one\n", {"id_field": "id"}, "without fields"),
    "csv, another field": ("f.csv", b"id,question\n1,a\n", {}, "fields seen: id, question; .*--text-field"),
    "csv, a header alone": ("f.csv", b"id,text\n", {}, "has no rows"),
    "csv, blank lines": ("f.csv", b"\n\n", {}, "is empty"),
    "csv, a name twice": ("f.csv", b"text,text\n1,a\n", {}, "names text more than once"),
    "csv, header in Latin-1": ("f.csv", b"t\xe9xt\na\n", {}, "header cannot be read"),
    "parquet, damaged": ("f.parquet", b"PAR1 and then nothing", {}, "cannot be read"),
    "parquet, another field": ("f.parquet", parquet(pa.table({"q": ["a"]})), {}, "fields seen: q; .*--text-field"),
    "parquet, no string": ("f.parquet", parquet(pa.table({"text": [1]})), {}, "'text' is int64; expected a string"),
    "parquet, id of a fraction": (
        "f.parquet",
        parquet(pa.table({"text": ["a"], "id": [0.5]})),
        {"id_field": "id"},
        "'id' is double; expected a string or an integer",
    ),
    "parquet, ids of fractions": (
        "f.parquet",
        parquet(pa.table({"ids": [[0.5]]})),
        {"token_ids_field": "ids"},
        "expected a list of integers",
    ),
    "parquet, messages of other names": (
        "f.parquet",
        parquet(pa.table({"chat": [[{"from": "human", "value": "hi"}]]})),
        {"messages_field": "chat"},
        "expected a list of structs of the strings role and content",
    ),
    "parquet, no rows": ("f.parquet", parquet(pa.table({"text": pa.array([], pa.string())})), {}, "has no rows"),
}


@pytest.mark.parametrize(
    ("name", "content", "options", "message"), WHOLE_FILE_PROBLEMS.values(), ids=WHOLE_FILE_PROBLEMS
)
def test_a_file_that_cannot_be_used_is_an_error_and_registers_nothing(tmp_path, name, content, options, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ProbeFileError, match=message):
        register(tmp_path / name, format=ProbeFormat(**options), folder=tmp_path / "registered")
    assert list((tmp_path / "registered").iterdir()) == []


def test_a_missing_file_and_a_folder_without_files_are_errors(tmp_path):
    for path, message in ((tmp_path / "none.jsonl", "does not exist"), (tmp_path, "holds no probe file")):
        with pytest.raises(ProbeFileError, match=message):
            register(path, format=ProbeFormat(), folder=tmp_path / "registered")


def test_many_fields_are_listed_in_part(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text(json.dumps({f"field{i}": i for i in range(25)}))
    with pytest.raises(ProbeFileError, match=r"field0, field1, .* and 5 more"):
        register(path, format=ProbeFormat(), folder=tmp_path)


@pytest.mark.parametrize(
    ("file_name", "set_name"),
    [
        ("gsm8k_test.jsonl", "gsm8k_test"),
        ("my probes (v2).jsonl", "my-probes-v2"),
        ("données.v1.jsonl", "donn-es.v1"),
        ("___.jsonl", "probes"),
        ("数据.jsonl", "probes"),
        ("n" * 200 + ".jsonl", "n" * 100),
    ],
)
def test_a_name_derived_from_the_files_makes_partition_keys(tmp_path, file_name, set_name):
    path = tmp_path / file_name
    path.write_bytes(b'{"text": "a"}\n{"text": "b"}\n')
    probe_set = register(path, format=ProbeFormat(), folder=tmp_path / "registered", shard_rows=1)
    assert [shard.part for shard in probe_set.shards] == [f"{set_name}.00000", f"{set_name}.00001"]
    assert all(PART_KEY.fullmatch(shard.part) for shard in probe_set.shards)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "n" * 101, "é"])
def test_a_given_name_that_makes_no_partition_key_is_refused(tmp_path, name):
    (tmp_path / "f.txt").write_bytes(b"a\n")
    with pytest.raises(ConfigurationError, match="probe set name"):
        register(tmp_path / "f.txt", name=name, format=ProbeFormat(), folder=tmp_path)


def test_what_is_registered_is_what_is_loaded(tmp_path):
    (tmp_path / "f.jsonl").write_bytes(b'{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    format = ProbeFormat(id_field="id")
    probe_set = register(tmp_path / "f.jsonl", format=format, folder=tmp_path / "r", shard_rows=1)
    assert load_probe_set(tmp_path / "r", "f") == probe_set
    assert register(tmp_path / "f.jsonl", format=format, folder=tmp_path / "r", shard_rows=1) == probe_set
    assert shard_of(tmp_path / "r", "f.00001") == (probe_set, probe_set.shards[1])
    assert probe_set.describe() == "probe set f (f.jsonl, 2 rows)"


def test_an_unknown_set_or_shard_is_told_with_what_there_is(tmp_path):
    (tmp_path / "f.txt").write_bytes(b"a\nb\n")
    register(tmp_path / "f.txt", format=ProbeFormat(), folder=tmp_path, shard_rows=1)
    with pytest.raises(ConfigurationError, match=r"no probe set 'g' is registered .* registered: f;"):
        shard_of(tmp_path, "g.00000")
    with pytest.raises(ConfigurationError, match=r"no shard 'f\.00002'; it has f\.00000 to f\.00001"):
        shard_of(tmp_path, "f.00002")


def test_a_name_is_not_taken_from_other_files(tmp_path):
    for place, content in (("one", b"a\n"), ("two", b"b\n")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "f.txt").write_bytes(content)
    register(tmp_path / "one" / "f.txt", format=ProbeFormat(), folder=tmp_path)
    with pytest.raises(ConfigurationError, match=r"registered already, from .*one/f\.txt; .*--name"):
        register(tmp_path / "two" / "f.txt", format=ProbeFormat(), folder=tmp_path)
    register(tmp_path / "two" / "f.txt", name="g", format=ProbeFormat(), folder=tmp_path)
    (tmp_path / "one" / "f.txt").write_bytes(b"a\nc\n")
    assert register(tmp_path / "one" / "f.txt", format=ProbeFormat(), folder=tmp_path).n_rows == 2


def test_the_same_content_may_move(tmp_path):
    (tmp_path / "f.txt").write_bytes(b"a\n")
    first = register(tmp_path / "f.txt", format=ProbeFormat(), folder=tmp_path)
    (tmp_path / "moved").mkdir()
    (tmp_path / "f.txt").rename(tmp_path / "moved" / "f.txt")
    second = register(tmp_path / "moved" / "f.txt", format=ProbeFormat(), folder=tmp_path)
    assert second.sources == (replace(first.sources[0], uri=(tmp_path / "moved" / "f.txt").as_uri()),)


def test_an_id_of_another_shard_or_file_is_found_and_the_first_row_keeps_it(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    ids = {"a.jsonl": ["x", 1, "y", "x"], "b.jsonl": ["1", "z", "y", "x"]}
    for name, values in ids.items():
        (files / name).write_text("".join(json.dumps({"id": v, "text": "t"}) + "\n" for v in values))
    probe_set = register(files, format=ProbeFormat(id_field="id"), folder=tmp_path, shard_rows=2)
    rows = [row for shard in probe_set.shards for row in read_shard(probe_set, shard)]
    refused = {i: (row.probe_id, row.reason, row.detail) for i, row in enumerate(rows) if isinstance(row, Refusal)}
    first = "the first row with this id is row"
    assert refused == {
        3: ("x", "duplicate-id", f"{first} 0 of a.jsonl"),
        4: ("1", "duplicate-id", f"{first} 1 of a.jsonl"),
        6: ("y", "duplicate-id", f"{first} 2 of a.jsonl"),
        7: ("x", "duplicate-id", f"{first} 0 of a.jsonl"),
    }


def test_duplicates_that_were_mended_are_forgotten(tmp_path):
    path = tmp_path / "f.jsonl"
    format = ProbeFormat(id_field="id")
    path.write_bytes(b'{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    register(path, format=format, folder=tmp_path / "r")
    path.write_bytes(b'{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n')
    register(path, format=format, folder=tmp_path / "r")
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["f.json"]


def test_duplicates_are_found_among_more_rows_than_are_held_at_once(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text("".join(f'{{"id": {i % 70_000}, "text": "t"}}\n' for i in range(140_000)))
    probe_set = register(path, format=ProbeFormat(id_field="id"), folder=tmp_path, shard_rows=70_000)
    [first, second] = [list(read_shard(probe_set, shard)) for shard in probe_set.shards]
    assert not any(isinstance(row, Refusal) for row in first)
    assert [row.detail.split()[-3] for row in second] == [str(i) for i in range(70_000)]


def test_progress_ends_at_the_whole(tmp_path):
    (tmp_path / "f.txt").write_bytes(b"a\n" * 40_000)
    calls = []
    register(tmp_path / "f.txt", format=ProbeFormat(), folder=tmp_path, progress=lambda *call: calls.append(call))
    assert calls == sorted(calls) and len(calls) > 2 and calls[-1] == (80_000, 80_000)


@pytest.mark.parametrize("shard_rows", [0, -1])
def test_a_shard_needs_a_row(tmp_path, shard_rows):
    with pytest.raises(ConfigurationError, match="shard_rows"):
        register(tmp_path, format=ProbeFormat(), folder=tmp_path, shard_rows=shard_rows)


def test_a_folder_that_gained_a_file_is_the_same_set(tmp_path):
    folder = tmp_path / "probes"
    folder.mkdir()
    (folder / "b.txt").write_text("one\n")
    register(folder, format=ProbeFormat(), folder=tmp_path)
    (folder / "a.txt").write_text("two\n")
    again = register(folder, format=ProbeFormat(), folder=tmp_path)
    assert [source.name for source in again.sources] == ["a.txt", "b.txt"]


def test_an_index_that_was_edited_is_refused(tmp_path):
    (tmp_path / "f.txt").write_text("one\ntwo\n")
    register(tmp_path / "f.txt", format=ProbeFormat(), folder=tmp_path, shard_rows=1)
    index = tmp_path / "f.json"
    record = json.loads(index.read_text())
    record["shards"][0]["slices"][0]["byte_offset"] = 4
    index.write_text(json.dumps(record))
    with pytest.raises(ConfigurationError, match="edited or damaged"):
        load_probe_set(tmp_path, "f")
