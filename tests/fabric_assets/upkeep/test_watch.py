"""Listing a folder of probe files: what is taken, when, and how it is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow import fs

from fabric_assets.upkeep import watch
from fabric_assets.upkeep.watch import Cursor, Entry, list_entries, local_path, next_step, read_format
from resources.errors import ConfigurationError
from resources.probe_files import ProbeFormat
from tests.object_store import object_store


def test_entries_are_probe_files_and_folders_of_them(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.txt", "set/1.csv", "set/2.csv", "set/_tmp.csv", ".hidden.txt", "_x.txt", "readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    for root in (str(tmp_path), tmp_path.as_uri()):
        assert [entry.name for entry in list_entries(root)] == ["a.txt", "b.jsonl", "set"]


def test_a_fingerprint_changes_with_every_file_and_with_how_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    seen = set()
    for name, text in (("set/1.txt", "a"), ("set/1.txt", "ab"), ("set/2.txt", "c"), (watch.FORMAT_FILE, "{}")):
        (tmp_path / name).write_text(text)
        seen.add(list_entries(str(tmp_path))[0].fingerprint)
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("listings", "settled"),
    [
        pytest.param([{"a": "1"}, {"a": "1"}], [[], ["a"]], id="taken when it stayed the same"),
        pytest.param([{"a": "1"}, {"a": "2"}, {"a": "3"}, {"a": "3"}], [[], [], [], ["a"]], id="still being written"),
        pytest.param([{"a": "1"}] * 4, [[], ["a"], [], []], id="taken once"),
        pytest.param([{"a": "1"}] * 2 + [{"a": "2"}] * 3, [[], ["a"], [], ["a"], []], id="changed, taken again"),
        pytest.param([{"a": "1"}] * 2 + [{}] + [{"a": "1"}] * 2, [[], ["a"], [], [], ["a"]], id="gone and back"),
        pytest.param([{"a": "1"}, {"a": "1", "b": "1"}, {"a": "1", "b": "1"}], [[], ["a"], ["b"]], id="one by one"),
    ],
)
def test_what_is_taken_when(listings: list[dict[str, str]], settled: list[list[str]]) -> None:
    cursor, taken = Cursor(), []
    for listing in listings:
        step = next_step(cursor, [Entry(name, fingerprint) for name, fingerprint in listing.items()])
        taken.append([entry.name for entry in step.settled])
        cursor = Cursor.from_json(step.cursor.to_json())
        assert cursor == step.cursor
    assert taken == settled


def test_what_is_gone_is_told_once() -> None:
    cursor = Cursor(taken={"a": "1", "b": "1"})
    step = next_step(cursor, [Entry("b", "1")])
    assert step.gone == ("a",)
    assert next_step(step.cursor, [Entry("b", "1")]).gone == ()


def test_a_folder_of_an_object_store_is_listed_and_its_entries_copied_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("moto", reason="needs the extra `object-store-tests`")
    with object_store("bucket") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        store, _ = fs.FileSystem.from_uri("s3://bucket/probes")
        cursor, root = Cursor(), "s3://bucket/probes"
        for text in ("old\n", "newer\n"):
            for path in ("a.txt", "set/1.txt", "set/2.txt", "_format.json"):
                with store.open_output_stream(f"bucket/probes/{path}") as stream:
                    stream.write(b"{}" if path == "_format.json" else text.encode())
            for settled in ([], ["a.txt", "set"]):
                step = next_step(cursor, list_entries(root))
                assert [entry.name for entry in step.settled] == settled
                cursor = step.cursor
            copies = [local_path(root, name, tmp_path / "incoming") for name in ("a.txt", "set")]
            assert [copies[0].read_text(), (copies[1] / "2.txt").read_text()] == [text, text]
        assert sorted(p.name for p in (tmp_path / "incoming").iterdir()) == ["a.txt", "set"]
        assert read_format(root) == (ProbeFormat(), watch.SHARD_ROWS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (ProbeFormat(), watch.SHARD_ROWS)),
        ('{"text_field": "q", "id_field": "id", "shard_rows": 7}', (ProbeFormat(text_field="q", id_field="id"), 7)),
        ('{"text": "q"}', "some of"),
        ("[]", "some of"),
        ("{", "JSON"),
        ('{"shard_rows": 0}', "at least 1"),
        ('{"shard_rows": "7"}', "at least 1"),
        ('{"format": "xml"}', "format is 'xml'"),
    ],
)
def test_the_format_file_is_read_or_refused_by_name(tmp_path: Path, text: str | None, expected: object) -> None:
    if text is not None:
        (tmp_path / watch.FORMAT_FILE).write_text(text)
    if isinstance(expected, str):
        with pytest.raises(ConfigurationError, match=expected):
            read_format(str(tmp_path))
    else:
        assert read_format(str(tmp_path)) == expected


@pytest.mark.parametrize("root", ["{tmp}/absent", "{tmp}/file", "nosuch://bucket/probes"])
def test_a_folder_that_cannot_be_watched_is_refused(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text(json.dumps({}))
    with pytest.raises(ConfigurationError, match="FABRIC_WATCH"):
        list_entries(root.format(tmp=tmp_path))
