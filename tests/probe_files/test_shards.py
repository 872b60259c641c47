from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resources.errors import ProbeFileError
from resources.probe_files import REASONS, ProbeFormat, read_shard, register, shard_of, survey_shard
from resources.probe_files.raw_rows import MAX_ROW_BYTES
from resources.records import Message, Probe, Refusal
from tests.probe_files.reading import outcomes, read_all


def test_a_probe_says_where_it_comes_from(tmp_path):
    path = tmp_path / "two words?.jsonl"
    path.write_bytes(b'\n{"text": "first"}\n{"text": "second"}')
    assert read_all(path) == [
        Probe("two-words.00000", "two words?.jsonl:1", "first", None, path.as_uri(), 1),
        Probe("two-words.00000", "two words?.jsonl:2", "second", None, path.as_uri(), 2),
    ]


def test_a_refusal_says_where_it_comes_from(tmp_path):
    path = tmp_path / "probes.jsonl"
    path.write_bytes(b'{"text": "first"}\n{"text": ""}')
    [_, refusal] = read_all(path)
    assert refusal == Refusal(
        "probes.00000",
        "probe_sets",
        "probes.jsonl:1",
        "empty-text",
        "field 'text' is an empty string",
        path.as_uri(),
        1,
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one\ntwo\n", [("f.txt:0", "one"), ("f.txt:1", "two")]),
        (b"one\n\nthree", [("f.txt:0", "one"), ("f.txt:1", "empty-text"), ("f.txt:2", "three")]),
        (b"\xef\xbb\xbfone\r\ntwo\r\n", [("f.txt:0", "one"), ("f.txt:1", "two")]),
        (b"caf\xe9\nfine\n", [("f.txt:0", "invalid-utf8"), ("f.txt:1", "fine")]),
        (b" \x00\t\n", [("f.txt:0", " \x00\t")]),
        ("a\u2028b\x0bc\n".encode(), [("f.txt:0", "a\u2028b\x0bc")]),
    ],
)
def test_a_line_of_a_text_file(tmp_path, content, expected):
    path = tmp_path / "f.txt"
    path.write_bytes(content)
    assert outcomes(read_all(path)) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"id,text\na,one\nb,two", [("a", "one"), ("b", "two")]),
        (b"\xef\xbb\xbfid,text\r\na,one\r\n\r\nb,two\r\n", [("a", "one"), ("b", "two")]),
        (b'text,id\n"one\nmore, and ""quoted""",a\ntwo,b\n', [("a", 'one\nmore, and "quoted"'), ("b", "two")]),
        (b"id,text\na\nb,two,three\nc,fine\n", [("", "ragged-row"), ("", "ragged-row"), ("c", "fine")]),
        (b"id,text\na,caf\xe9\nb,fine\n", [("", "invalid-utf8"), ("b", "fine")]),
        (
            b"id,text\na,\n,two\na,three\nb, \n",
            [("a", "empty-text"), ("", "empty-id"), ("a", "duplicate-id"), ("b", " ")],
        ),
        (b'id,text\na,fine\nb,"no end\nc,swallowed\n', [("a", "fine"), ("", "unclosed-quote")]),
        (b"id,text\na,one\rb,two\nc,fine\n", [("", "invalid-csv"), ("c", "fine")]),
        (b'id,text\na,5" disk\nb,"x"y\n', [("a", '5" disk'), ("b", "xy")]),
        (b"id,text\na,nul \x00\n", [("a", "nul \x00")]),
        (b'id,text\na,"' + b"x" * 200_000 + b'"\n', [("a", "x" * 200_000)]),
    ],
)
def test_a_record_of_a_csv_file(tmp_path, content, expected):
    path = tmp_path / "f.csv"
    path.write_bytes(content)
    assert outcomes(read_all(path, id_field="id")) == expected


def test_a_csv_row_is_the_record_after_the_header(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(b'text\none\n\n"two\nlines"\nthree\n')
    assert [row.source_row for row in read_all(path, shard_rows=1)] == [0, 1, 2]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_a_row_of_a_parquet_file(tmp_path, kind):
    path = tmp_path / "f.parquet"
    texts = pa.array(["one", None, "", "four\x00"]).cast(kind)
    pq.write_table(pa.table({"id": pa.array([1, 2, 3, 1], pa.uint64()), "text": texts}), path)
    expected = [("1", "one"), ("2", "missing-text"), ("3", "empty-text"), ("1", "duplicate-id")]
    assert outcomes(read_all(path, id_field="id")) == expected


def test_bytes_of_a_parquet_file_that_are_not_utf8_cost_their_own_row_alone(tmp_path):
    path = tmp_path / "f.parquet"
    texts = pa.array([b"one", b"caf\xe9", b"three"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"id": ["a", "b", None], "text": texts}), path)
    assert outcomes(read_all(path, id_field="id")) == [("a", "one"), ("b", "invalid-utf8"), ("", "missing-id")]


def test_shards_of_a_parquet_file_begin_inside_row_groups(tmp_path):
    path = tmp_path / "f.parquet"
    texts = [f"text {i}" for i in range(5000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=1700)
    rows = read_all(path, shard_rows=999)
    assert [row.text for row in rows] == texts
    assert [row.source_row for row in rows] == list(range(5000))


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (b'{"ids": [5, 0, 2147483647]}', (5, 0, 2147483647)),
        (b'{"ids": []}', "invalid-token-ids"),
        (b'{"ids": [1, 2147483648]}', "invalid-token-ids"),
        (b'{"ids": [-1]}', "invalid-token-ids"),
        (b'{"ids": [1, 2.0]}', "invalid-token-ids"),
        (b'{"ids": [true]}', "invalid-token-ids"),
        (b'{"ids": [[1]]}', "invalid-token-ids"),
        (b'{"ids": {"0": 1}}', "invalid-token-ids"),
        (b'{"ids": "[1, 2]"}', (1, 2)),
        (b'{"ids": "1 2"}', "invalid-token-ids"),
        (b'{"ids": null}', "missing-token-ids"),
        (b'{"text": "a text is no token ids"}', "missing-token-ids"),
    ],
)
def test_given_token_ids(tmp_path, line, outcome):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"ids": [1]}\n' + line)
    row = read_all(path, token_ids_field="ids")[1]
    assert (row.reason if isinstance(row, Refusal) else row.token_ids) == outcome


def test_token_ids_of_csv_and_parquet_files(tmp_path):
    (tmp_path / "c.csv").write_bytes(b'ids\n"[1, 2]"\n3\n')
    pq.write_table(pa.table({"ids": [[1, 2], [3, None], None]}), tmp_path / "p.parquet")
    for name, expected in (
        ("c.csv", [(1, 2), "invalid-token-ids"]),
        ("p.parquet", [(1, 2), "invalid-token-ids", "missing-token-ids"]),
    ):
        rows = read_all(tmp_path / name, token_ids_field="ids")
        assert [row.token_ids if isinstance(row, Probe) else row.reason for row in rows] == expected


USER, ASSISTANT = Message("user", "hi"), Message("assistant", "")


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (b'{"chat": [{"role": "user", "content": "hi"}]}', (USER,)),
        (b'{"chat": [{"content": "hi", "role": "user", "x": null}, {"role": "assistant", "content": ""}]}',
         (USER, ASSISTANT)),
        (b'{"chat": "[{\\"role\\": \\"user\\", \\"content\\": \\"hi\\"}]"}', (USER,)),
        (b'{"chat": null}', "missing-messages"),
        (b'{"text": "a text is no chat"}', "missing-messages"),
        (b'{"chat": []}', "invalid-messages"),
        (b'{"chat": {"role": "user", "content": "hi"}}', "invalid-messages"),
        (b'{"chat": "hi"}', "invalid-messages"),
        (b'{"chat": ["hi"]}', "invalid-messages"),
        (b'{"chat": [null]}', "invalid-messages"),
        (b'{"chat": [{"role": "user"}]}', "invalid-messages"),
        (b'{"chat": [{"role": "user", "content": null}]}', "invalid-messages"),
        (b'{"chat": [{"role": "", "content": "hi"}]}', "invalid-messages"),
        (b'{"chat": [{"role": "user", "content": 1}]}', "invalid-messages"),
        (b'{"chat": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}', "invalid-messages"),
        (b'{"chat": [{"role": "assistant", "content": "", "tool_calls": []}]}', "invalid-messages"),
        (b'{"chat": [{"from": "human", "value": "hi"}]}', "invalid-messages"),
        (b'{"chat": [{"role": "user", "content": "\\ud800"}]}', "lone-surrogate"),
    ],
)  # fmt: skip
def test_chat_messages(tmp_path, line, outcome):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"chat": [{"role": "user", "content": "hi"}]}\n' + line)
    row = read_all(path, messages_field="chat")[1]
    assert (row.reason if isinstance(row, Refusal) else row.messages) == outcome
    if isinstance(row, Probe):
        assert (row.text, row.token_ids) == (None, None)


def test_messages_of_csv_and_parquet_files(tmp_path):
    turn = {"role": "user", "content": "hi", "name": None}
    other = turn | {"name": "Ann"}
    (tmp_path / "c.csv").write_text('chat\n"[{""role"": ""user"", ""content"": ""hi""}]"\nhi\n')
    pq.write_table(pa.table({"chat": [[turn], [other], None, [], [None]]}), tmp_path / "p.parquet")
    for name, expected in (
        ("c.csv", [(USER,), "invalid-messages"]),
        ("p.parquet", [(USER,), *["invalid-messages"], "missing-messages", *["invalid-messages"] * 2]),
    ):
        rows = read_all(tmp_path / name, messages_field="chat")
        assert [row.messages if isinstance(row, Probe) else row.reason for row in rows] == expected


def test_a_message_of_a_parquet_file_that_is_not_utf8_costs_its_own_row_alone(tmp_path):
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    contents = pa.array([b"hi", b"caf\xe9", b"hi"], pa.binary()).cast(pa.string(), safe=False)
    structs = pa.StructArray.from_arrays([pa.array(["user"] * 3), contents], fields=list(message))
    chats = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), structs)
    pq.write_table(pa.table({"chat": chats}), tmp_path / "f.parquet")
    rows = read_all(tmp_path / "f.parquet", messages_field="chat")
    assert [row.messages if isinstance(row, Probe) else row.reason for row in rows] == [
        (USER,),
        "invalid-utf8",
        (USER,),
    ]


def test_a_surveys_digest_tells_chats_and_texts_of_the_same_words_apart(tmp_path):
    path = tmp_path / "f.jsonl"
    digests = set()
    for line, field in (
        (b'{"x": [{"role": "user", "content": "hi"}]}', "messages_field"),
        (b'{"x": [{"role": "userh", "content": "i"}]}', "messages_field"),
        (b'{"x": "[[\\"user\\", \\"hi\\"]]"}', "text_field"),
    ):
        path.write_bytes(line)
        probe_set = register(path, format=ProbeFormat(**{field: "x"}), folder=tmp_path / "registered")
        digests.add(survey_shard(probe_set, probe_set.shards[0]).digest)
    assert len(digests) == 3


def test_a_row_that_is_too_long_is_refused(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"text": "' + b"x" * MAX_ROW_BYTES + b'"}\n{"text": "fine"}\n')
    assert outcomes(read_all(path)) == [("f.jsonl:0", "row-too-long"), ("f.jsonl:1", "fine")]


def test_every_row_of_a_folder_is_in_one_shard_and_keeps_its_place(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "b0"}\n\n{"text": "b2"}\n')
    (tmp_path / "a.csv").write_bytes(b'text\na0\n"a\n1"\n')
    (tmp_path / "sub" / "c.txt").write_bytes(b"c0\n\nc2")
    pq.write_table(pa.table({"text": ["d0"]}), tmp_path / "d.parquet")
    for hidden in (".hidden.jsonl", "_SUCCESS"):
        (tmp_path / hidden).write_bytes(b"")
    folder = tmp_path.parent / "registered"
    expected = [
        ("a.csv:0", "a0"),
        ("a.csv:1", "a\n1"),
        ("b.jsonl:0", "b0"),
        ("b.jsonl:2", "b2"),
        ("d.parquet:0", "d0"),
        ("sub/c.txt:0", "c0"),
        ("sub/c.txt:1", "empty-text"),
        ("sub/c.txt:2", "c2"),
    ]
    for shard_rows in range(1, 10):
        probe_set = register(tmp_path, name="all", format=ProbeFormat(), folder=folder, shard_rows=shard_rows)
        shards = [list(read_shard(probe_set, shard)) for shard in probe_set.shards]
        assert [row for rows in shards for row in outcomes(rows)] == expected
        assert [len(rows) for rows in shards] == [shard.n_rows for shard in probe_set.shards]
        assert all(len(rows) == shard_rows for rows in shards[:-1])
        assert [row.part for rows in shards for row in rows] == [f"all.{i // shard_rows:05d}" for i in range(8)]


def test_a_survey_counts_what_reading_gives(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": ""}\nno\n{"text": "b"}\n')
    register(path, format=ProbeFormat(), folder=tmp_path)
    survey = survey_shard(*shard_of(tmp_path, "f.00000"))
    assert survey.n_probes == 2
    assert [r.reason for r in survey.refusals] == ["empty-text", "invalid-json"]


def test_a_surveys_digest_is_of_the_probes(tmp_path):
    def digest_of(content: bytes) -> bytes:
        (tmp_path / "f.jsonl").write_bytes(content)
        probe_set = register(tmp_path / "f.jsonl", format=ProbeFormat(id_field="id"), folder=tmp_path)
        return survey_shard(probe_set, probe_set.shards[0]).digest

    contents = [
        b'{"id": "a", "text": "bc"}\n{"id": "d", "text": "e"}\n',
        b'{"id": "ab", "text": "c"}\n{"id": "d", "text": "e"}\n',
        b'{"id": "a", "text": "bc"}\n',
        b'{"id": "d", "text": "e"}\n{"id": "a", "text": "bc"}\n',
        b'{"id": "a", "text": "bc"}\n\n{"id": "d", "text": "e"}\n',
    ]
    assert len({digest_of(content) for content in contents}) == len(contents)
    assert digest_of(contents[0]) == digest_of(contents[0].replace(b"}", b', "label": 1}'))


def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(b'{"text": "longer than it was"}\n'), "changed since it was registered"),
        (_rewrite, "changed since it was registered"),
        (Path.unlink, "cannot be read"),
        (_touch, None),
    ],
)
def test_a_file_that_changed_since_it_was_registered_is_not_read(tmp_path, change, message):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"text": "one"}\n')
    probe_set = register(path, format=ProbeFormat(), folder=tmp_path)
    change(path)
    if message is None:
        assert outcomes(list(read_shard(probe_set, probe_set.shards[0]))) == [("f.jsonl:0", "one")]
    else:
        with pytest.raises(ProbeFileError, match=message):
            list(read_shard(probe_set, probe_set.shards[0]))


def test_every_refusal_can_be_written_as_utf8_and_has_a_known_reason(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"id": "\\ud800", "text": "a"}\n{"id": "\\u0000", "text": "\\ud800"}\n\xff\n{"id": 1}\n')
    for refusal in read_all(path, id_field="id"):
        assert refusal.reason in REASONS
        "".join((refusal.probe_id, refusal.detail, refusal.source_uri)).encode()
