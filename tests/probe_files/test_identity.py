"""A shard's identity moves with everything that decides its rows, and with nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resources.probe_files import ProbeFormat, register
from resources.probe_files.identity import shard_identity

LINES = '{"text": "a", "id": "1", "q": "x"}\n{"text": "b", "id": "2", "q": "y"}\n{"text": "c", "id": "3", "q": "z"}\n'


def identities(folder: Path, text: str = LINES, *, shard_rows: int = 2, **reading: object) -> list[bytes]:
    path = folder / "set.jsonl"
    path.write_text(text)
    os.utime(path, (1, 1))
    form = ProbeFormat(**({"id_field": "id"} | reading))
    probe_set = register(path, format=form, folder=folder / "index", shard_rows=shard_rows)
    return [shard_identity(probe_set, shard) for shard in probe_set.shards]


def test_registering_again_gives_the_same_and_shards_differ(tmp_path: Path) -> None:
    first = identities(tmp_path)
    assert identities(tmp_path) == first
    assert len(set(first)) == 2


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (LINES.replace('"a"', '"d"'), {}),
        (LINES + '{"text": "d", "id": "4", "q": "w"}\n', {}),
        (LINES, {"text_field": "q"}),
        (LINES, {"id_field": None}),
        (LINES, {"shard_rows": 1}),
        (LINES.replace('"2"', '"1"'), {}),
    ],
    ids=["a byte", "a row more", "another field", "other ids", "another cut", "an id twice"],
)
def test_what_decides_the_rows_moves_it(tmp_path: Path, text: str, options: dict[str, object]) -> None:
    assert identities(tmp_path, text, **options)[0] != identities(tmp_path)[0]
