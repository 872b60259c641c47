from dataclasses import replace

import numpy as np
import pytest

from resources import proof
from resources.proof.contract import CanaryBatch, WorkDescription, check_contract
from tests import zoo

SEQUENCES = (np.array([5, 6, 7]), np.array([8]))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    directory = tmp_path_factory.mktemp("engine")
    zoo.write_engine("exclusive-end", directory)
    with proof.load(directory, threads=1) as opened:
        yield opened


@pytest.fixture
def work(engine) -> WorkDescription:
    return WorkDescription(
        model_key=engine.model_key,
        tokenizer_id=engine.tokenizer_id,
        hidden_size=zoo.HIDDEN,
        dtype="float32",
        vocab_size=273,
        max_sequences=12,
        max_num_tokens=64,
        max_input_len=24,
    )


@pytest.fixture
def canary(engine) -> CanaryBatch:
    return CanaryBatch(SEQUENCES, engine.extract(SEQUENCES), tolerance=1e-3)


def failed(clauses) -> list[str]:
    return [c.name for c in clauses if not c.passed]


def test_work_that_fits_passes_every_clause(engine, work, canary):
    clauses = check_contract(engine, work, canary)
    assert failed(clauses) == []
    assert [c.name for c in clauses][:3] == ["key-value cache", "gather convention", "input read"]


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"model_key": "another"}, "model key"),
        ({"tokenizer_id": "another"}, "tokenizer"),
        ({"hidden_size": 32}, "hidden size"),
        ({"dtype": "float16"}, "dtype"),
        ({"vocab_size": 274}, "vocabulary"),
        ({"max_sequences": 13}, "sequences in a batch"),
        ({"max_num_tokens": 65}, "tokens in a batch"),
        ({"max_input_len": 25}, "tokens in a sequence"),
    ],
)
def test_work_that_does_not_fit_fails_its_clause_alone_and_says_both_sides(engine, work, change, clause):
    clauses = check_contract(engine, replace(work, **change))
    assert failed(clauses) == [clause]
    broken = next(c for c in clauses if c.name == clause)
    assert str(next(iter(change.values()))) in broken.expected
    assert broken.seen not in broken.expected.split()


@pytest.mark.parametrize(
    ("vectors", "passes"),
    [
        (lambda v: v * np.float32(1 + 1e-4), True),
        (lambda v: v * np.float32(1 + 1e-2), False),
        (lambda v: v[::-1], False),
        (lambda v: np.where(v == v[1, 0], np.nan, v), False),
        (lambda v: v[:1], False),
    ],
    ids=["rounding", "too far", "another order", "not a number", "too few"],
)
def test_the_canary_holds_two_builds_together(engine, work, canary, vectors, passes):
    clauses = check_contract(engine, work, replace(canary, vectors=vectors(canary.vectors)))
    assert failed(clauses) == ([] if passes else ["canary vectors"])


def test_without_a_canary_the_clause_says_so(engine, work):
    assert check_contract(engine, work)[-1].seen == "no canary registered"
