from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from io_managers.tables import PROBE_SETS
from resources.checkpoint import open_checkpoint
from resources.checkpoint.tokenizer import TokenizerPolicy
from resources.probe_files import REASONS, ProbeFormat, read_shard, register
from resources.records import Limits, Probe, Refusal
from resources.work_items import tokenise_partition
from tests.tiny import tiny_gguf

EXAMPLES = Path(__file__).parents[1] / "examples"

NOT_IN_A_JSONL_FILE = {"invalid-csv", "ragged-row", "unclosed-quote"}
NOT_FOR_TEXTS = {"missing-token-ids", "invalid-token-ids", "missing-messages", "invalid-messages"}
TOO_LARGE_TO_COMMIT = {"row-too-long"}


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def statements() -> list[dict]:
    return [json.loads(line) for line in (EXAMPLES / "statements.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["make_statements", "make_awkward"])
def test_the_committed_file_is_what_its_script_writes(name):
    module = script(name)
    assert module.TARGET.read_bytes() == module.content()


def test_statements_are_a_probe_set_without_refusals(tmp_path):
    path = EXAMPLES / "statements.jsonl"
    probe_set = register(path, format=ProbeFormat(id_field="id"), folder=tmp_path)
    rows = [row for shard in probe_set.shards for row in read_shard(probe_set, shard)]
    assert len(rows) > 3000 and all(isinstance(row, Probe) for row in rows)


def test_statements_differ_and_as_many_are_true_as_false(statements):
    assert len({s["text"] for s in statements}) == len(statements)
    for topic in {s["topic"] for s in statements}:
        labels = Counter(s["label"] for s in statements if s["topic"] == topic)
        assert labels[True] == labels[False] > 100


def test_a_denied_statement_has_the_opposite_label(statements):
    labels = {s["text"]: s["label"] for s in statements}
    denied = [text for text in labels if " not " in text]
    assert len(denied) > 800
    for text in denied:
        affirmed = text.replace(" does not mean ", " means ").replace(" is not ", " is ")
        assert labels[affirmed] is not labels[text]


def test_statements_about_numbers_are_labelled_by_arithmetic(statements):
    values = {script("make_statements").in_words(n): n for n in range(120)}
    checked = 0
    for statement in statements:
        words = statement["text"].rstrip(".").lower()
        for relation, holds in (
            (" is larger than ", lambda a, b: a > b),
            (" is smaller than ", lambda a, b: a < b),
            (" is ", lambda a, b: a == b),
        ):
            if statement["topic"].startswith(("comparisons", "sums")) and relation in words:
                left, right = (
                    sum(int(n) if n.isdigit() else values[n] for n in side.split(" plus "))
                    for side in words.split(relation)
                )
                assert holds(left, right) is statement["label"], statement
                checked += 1
                break
    assert checked > 1500


def test_number_words_are_right():
    in_words = script("make_statements").in_words
    expected = {7: "seven", 13: "thirteen", 20: "twenty", 21: "twenty-one", 90: "ninety", 99: "ninety-nine"}
    expected |= {100: "one hundred", 103: "one hundred and three"}
    assert {n: in_words(n) for n in expected} == expected


def test_every_awkward_line_becomes_what_it_must(tmp_path):
    lines = script("make_awkward").LINES
    probe_set = register(EXAMPLES / "awkward.jsonl", format=ProbeFormat(id_field="id"), folder=tmp_path, shard_rows=7)
    seen = {}
    tokenizer = open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf"))).tokenizer(TokenizerPolicy())
    for shard in probe_set.shards:
        rows = list(read_shard(probe_set, shard))
        seen |= {row.source_row: (row.reason, row.probe_id) for row in rows if isinstance(row, Refusal)}
        probes = [row for row in rows if isinstance(row, Probe)]
        batch = pa.RecordBatch.from_pylist([vars(probe) for probe in probes], schema=PROBE_SETS.schema)
        with tokenise_partition(
            shard.part,
            [batch],
            tokenizer,
            probes_digest=bytes(8),
            limits=Limits(max_batch_size=8, max_num_tokens=4096, max_input_len=2048),
            vocab_size=tokenizer.vocab_size,
            scratch=tmp_path / "scratch",
        ) as tokenised:
            seen |= {refusal.source_row: (refusal.reason, refusal.probe_id) for refusal in tokenised.refusals}
            with_tokens = {name for b in tokenised.batches() for name in b.column("probe_id").to_pylist()}
        seen |= {p.source_row: ("vector", p.probe_id) for p in probes if p.probe_id in with_tokens}
    expected = {i: (line.outcome, line.probe_id) for i, line in enumerate(lines) if line.outcome != "blank"}
    assert seen == expected
    assert probe_set.n_rows == len(expected)


def test_every_reason_that_a_small_jsonl_file_can_give_is_among_the_awkward_lines():
    outcomes = {line.outcome for line in script("make_awkward").LINES}
    assert outcomes >= REASONS.keys() - NOT_IN_A_JSONL_FILE - NOT_FOR_TEXTS - TOO_LARGE_TO_COMMIT
