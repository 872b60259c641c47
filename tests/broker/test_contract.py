"""The contract's file and digest: every field counts, and nothing is guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resources.broker.contract import Contract, clauses_of, read_contract
from resources.errors import ConfigurationError
from resources.proof import load
from resources.proof.contract import WorkDescription
from tests import zoo

CONTRACT = Contract("e" * 32, WorkDescription("m" * 32, "t" * 32, 64, "float32", 273, 12, 64, 24), 1e-3)
WORK = CONTRACT.work

CHANGED = {
    "engine_id": replace(CONTRACT, engine_id="f" * 32),
    "canary_tolerance": replace(CONTRACT, canary_tolerance=2e-3),
    "model_key": replace(CONTRACT, work=replace(WORK, model_key="k" * 32)),
    "tokenizer_id": replace(CONTRACT, work=replace(WORK, tokenizer_id="u" * 32)),
    "hidden_size": replace(CONTRACT, work=replace(WORK, hidden_size=65)),
    "dtype": replace(CONTRACT, work=replace(WORK, dtype="float16")),
    "vocab_size": replace(CONTRACT, work=replace(WORK, vocab_size=274)),
    "max_sequences": replace(CONTRACT, work=replace(WORK, max_sequences=13)),
    "max_num_tokens": replace(CONTRACT, work=replace(WORK, max_num_tokens=65)),
    "max_input_len": replace(CONTRACT, work=replace(WORK, max_input_len=25)),
}


def test_a_change_of_any_field_is_another_queue(tmp_path: Path) -> None:
    assert set(json.loads(CONTRACT.to_json())) == set(CHANGED)
    queues = {contract.queue for contract in [CONTRACT, *CHANGED.values()]}
    assert len(queues) == 1 + len(CHANGED)
    (tmp_path / "contract.json").write_text(CONTRACT.to_json())
    assert read_contract(tmp_path / "contract.json") == CONTRACT


def without(name: str) -> dict[str, Any]:
    return {k: v for k, v in json.loads(CONTRACT.to_json()).items() if k != name}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        json.dumps(without("dtype")),
        json.dumps(json.loads(CONTRACT.to_json()) | {"more": 1}),
        json.dumps(json.loads(CONTRACT.to_json()) | {"max_sequences": "12"}),
        json.dumps(json.loads(CONTRACT.to_json()) | {"canary_tolerance": 1}),
    ],
    ids=["empty", "a list", "no field", "one less", "one more", "a text for a number", "an integer for a float"],
)
def test_a_file_that_is_no_contract_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "contract.json").write_text(content)
    with pytest.raises(ConfigurationError, match="write it again with `fabric contract`"):
        read_contract(tmp_path / "contract.json")


def test_a_missing_file_says_how_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no contract at .*; write it with `fabric contract`"):
        read_contract(tmp_path / "contract.json")


def test_the_build_is_a_clause_beside_those_of_every_run(tmp_path: Path) -> None:
    record = zoo.write_engine("exclusive-end", tmp_path / "engine")
    with load(tmp_path / "engine", threads=1) as engine:
        clauses = clauses_of(engine, CONTRACT, None)
        assert (clauses[0].name, clauses[0].passed, clauses[0].seen) == ("engine", False, record.engine_id)
        assert clauses_of(engine, replace(CONTRACT, engine_id=record.engine_id), None)[0].passed
    assert {"key-value cache", "gather convention", "tokenizer", "canary vectors"} < {c.name for c in clauses}
