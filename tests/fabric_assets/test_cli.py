"""The command line as a person uses it: in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from io_managers.reading import connect, read_hidden_states
from resources.checkpoint import TokenizerPolicy, open_checkpoint
from tests.tiny import tiny_gguf
from tests.zoo import write_engine

FABRIC = Path(sys.executable).parent / "fabric"
SMALL = ["--max-tokens", "24", "--max-batch-tokens", "64", "--max-batch-size", "12"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path / "home"))
    tiny_gguf(tmp_path / "tiny.gguf")
    return tmp_path


def fabric(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FABRIC, *map(str, arguments)], capture_output=True, text=True, check=False)


def extract(home: Path, probes: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return fabric("extract", probes, "--model", home / "tiny.gguf", *SMALL, *arguments)


def write_probes(home: Path, n: int) -> Path:
    probes = home / "probes.jsonl"
    probes.write_text("".join(json.dumps({"q": f"text {i}", "id": i}) + "\n" for i in range(n)))
    return probes


def test_extract_reads_the_named_fields_and_tells_what_it_made(home: Path) -> None:
    run = extract(home, write_probes(home, 5), "--text-field", "q", "--id-field", "id", "--shard-rows", 3)
    assert run.returncode == 0, run.stderr
    assert "is proved" in run.stdout
    assert "probes.00001: 2 vectors, 0 refused" in run.stdout
    ids, vectors = read_hidden_states()
    assert sorted(ids["probe_id"]) == ["0", "1", "2", "3", "4"]
    assert vectors.shape == (5, 64)
    assert np.isfinite(vectors).all()


def test_what_a_call_leaves_open_is_as_the_environment_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_MODEL", str(home / "tiny.gguf"))
    monkeypatch.setenv("FABRIC_THREADS", "1")
    run = fabric("extract", write_probes(home, 2), "--text-field", "q", *SMALL)
    assert run.returncode == 0, run.stderr
    assert read_hidden_states()[1].shape == (2, 64)


def test_an_engine_that_is_there_already_is_used_within_its_own_limits(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = write_probes(home, 3)
    assert extract(home, probes, "--text-field", "q").returncode == 0
    ids, vectors = read_hidden_states()
    [config] = (home / "home" / "engines").glob("*/config.json")
    monkeypatch.setenv("FABRIC_HOME", str(home / "another"))
    run = fabric("extract", probes, "--text-field", "q", "--model", home / "tiny.gguf", "--engine", config.parent)
    assert run.returncode == 0, run.stderr
    again, same = read_hidden_states()
    assert set(again["engine_id"]) == set(ids["engine_id"])
    np.testing.assert_array_equal(same, vectors)


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>a' }}{% endif %}"
)


def test_chats_are_extracted_through_the_models_own_template(home: Path) -> None:
    tiny_gguf(home / "tiny.gguf", metadata={"tokenizer.chat_template": CHATML})
    turns = [{"role": "user", "content": "the"}]
    chats = [{"chat": turns}, {"chat": [*turns, {"role": "assistant", "content": "a"}]}, {"chat": [{"role": "user"}]}]
    probes = home / "chats.jsonl"
    probes.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    run = extract(home, probes, "--messages-field", "chat")
    assert run.returncode == 2
    assert "--messages-field needs --chat turns or --chat generation_prompt" in run.stderr
    options = ["--max-tokens", 60, "--chat", "generation_prompt", "--no-parse-special", "--no-bos"]
    run = extract(home, probes, "--messages-field", "chat", *options)
    assert run.returncode == 0, run.stderr
    assert "chats.00000: 2 vectors, 1 refused, 1 invalid-messages" in run.stdout
    rows = connect().sql(
        "SELECT p.probe_id, p.messages, h.n_tokens FROM probe_sets p JOIN hidden_states h USING (part, probe_id)"
    )
    found = {name: (messages, n) for name, messages, n in rows.fetchall()}
    assert found["chats.jsonl:0"][0] == turns
    policy = TokenizerPolicy(chat="generation_prompt", parse_special=False, add_bos=False)
    tokenizer = open_checkpoint(str(home / "tiny.gguf")).tokenizer(policy)
    assert found["chats.jsonl:0"][1] == len(tokenizer.encode(["the"])[0])


def test_a_set_registered_again_in_fewer_shards_keeps_no_row_of_the_others(home: Path) -> None:
    assert extract(home, write_probes(home, 6), "--text-field", "q", "--shard-rows", 2).returncode == 0
    run = extract(home, write_probes(home, 3), "--text-field", "q", "--shard-rows", 2)
    assert run.returncode == 0, run.stderr
    assert "probes.00002 was withdrawn: 2 vectors of 2 probes removed" in run.stdout
    ids, _ = read_hidden_states()
    assert sorted(ids["probe_id"]) == [f"probes.jsonl:{row}" for row in range(3)]


def test_export_writes_what_read_hidden_states_gives(home: Path) -> None:
    assert extract(home, write_probes(home, 4), "--text-field", "q").returncode == 0
    run = fabric("export", "probes.00000", "--to", home / "out.npy")
    assert run.returncode == 0, run.stderr
    np.testing.assert_array_equal(np.load(home / "out.npy"), read_hidden_states("probes.00000")[1])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["extract", "absent.jsonl"], 2, "does not exist"),
        (["extract", "{probes}"], 1, "fields seen"),
        (["extract", "{probes}", "--text-field", "q", "--model", "absent.gguf"], 1, "absent.gguf"),
        (["extract", "{probes}", "--text-field", "q", "--model", "{probes}"], 1, "of a .gguf file"),
        (["extract", "{probes}", "--max-batch-size", "3"], 2, "x>=4"),
        (["extract", "{probes}", "--max-batch-tokens", "7"], 2, "x>=8"),
        (["extract", "{probes}", "--max-tokens", "1"], 2, "x>=2"),
        (["extract", "{probes}", "--threads", "0"], 2, "x>=1"),
        (["export", "no.00000", "--to", "x.npy"], 1, "no vectors"),
        (["export", "no.00000", "--to", "x.doc"], 1, ".doc"),
        (["validate", "{folder}"], 1, "config.json"),
    ],
)
def test_a_wrong_call_gets_a_sentence_and_no_traceback(home: Path, arguments: list[str], code: int, says: str) -> None:
    probes = write_probes(home, 2)
    run = fabric(*(a.format(probes=probes, folder=home) for a in arguments))
    assert run.returncode == code, run.stderr
    assert says in run.stderr
    assert "Traceback" not in run.stderr


def test_a_home_that_cannot_be_made_gets_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("FABRIC_HOME", str(home / "file" / "home"))
    run = fabric("init")
    assert run.returncode == 1
    assert "writable" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("kind", "code", "verdict", "reason"),
    [("inclusive-end", 0, "proved", "proved"), ("all-zero", 1, "refused", "all-zero")],
)
def test_validate_prints_the_verdict_and_the_evidence(
    home: Path, kind: str, code: int, verdict: str, reason: str
) -> None:
    write_engine(kind, home / "engine")
    run = fabric("validate", home / "engine", "--json")
    report = json.loads(run.stdout)
    assert (run.returncode, report["verdict"], report["reason"]) == (code, verdict, reason)
    words = fabric("validate", home / "engine", "--html", home / "report.html")
    assert words.returncode == code
    assert words.stdout.startswith(verdict)
    assert "decided by" in words.stdout
    assert "finding the gather convention" in words.stderr
    assert f"<h1>{verdict.capitalize()}</h1>" in (home / "report.html").read_text(encoding="utf-8")


def test_validate_compares_an_engine_with_the_checkpoint_that_it_was_built_from(home: Path) -> None:
    assert extract(home, write_probes(home, 2), "--text-field", "q").returncode == 0
    [engine] = (home / "home" / "engines").glob("[!.]*/config.json")
    run = fabric("validate", engine.parent, "--model", home / "tiny.gguf")
    assert run.returncode == 0, run.stderr
    assert "first for both" in run.stdout
    tiny_gguf(home / "other.gguf", seed=7)
    other = fabric("validate", engine.parent, "--model", home / "other.gguf")
    assert other.returncode == 1
    assert "built from checkpoint" in other.stderr
    assert "Traceback" not in other.stderr


@pytest.mark.slow
def test_a_kill_in_the_middle_loses_and_doubles_nothing(home: Path) -> None:
    """Killed at several moments, then run to the end: every probe has one vector, and the sum of rows is right."""
    n = 3000
    probes = home / "many.jsonl"
    probes.write_text("".join(json.dumps({"text": f"{i} and {i * 31 % 1000}"}) + "\n" for i in range(n)))
    arguments = [FABRIC, "extract", probes, "--model", home / "tiny.gguf", *SMALL, "--shard-rows", "500"]
    for seconds in (6.0, 8.0, 10.0):
        child = subprocess.Popen(
            list(map(str, arguments)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(seconds)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    run = fabric(*arguments[1:])
    assert run.returncode == 0, run.stderr
    ids, vectors = read_hidden_states()
    assert len(ids) == len(vectors) == ids["probe_id"].n_unique() == n
