import json

import numpy as np
import pytest

from resources import proof
from resources.checkpoint import load_tokenizer
from resources.engine import backend
from resources.engine.backend import open_backend
from resources.errors import EngineError, EngineRefused
from resources.proof.validation import ValidationReport
from resources.proof.vectors import MOVED
from resources.records import GatherConvention
from tests import zoo

RIGHT = [name for name, kind in zoo.KINDS.items() if "proved" in kind.reasons]
WRONG = [name for name in zoo.KINDS if name not in RIGHT]


def report_of(kind: str, directory, seed: int, precision: str) -> ValidationReport:
    zoo.write_engine(kind, directory, seed, precision=precision)
    try:
        with proof.load(directory, threads=1) as engine:
            return engine.report
    except EngineRefused as refusal:
        return refusal.report


def seeds(few: int, many: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seeds", [few, pytest.param(many, marks=pytest.mark.soak)], ids=["few", "many"])


@seeds(20, 400)
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("kind", RIGHT)
def test_no_right_engine_is_refused(tmp_path, kind, precision, seeds):
    expected = zoo.KINDS[kind]
    for seed in range(seeds):
        report = report_of(kind, tmp_path / str(seed), seed, precision)
        assert report.verdict == "proved", (seed, report.reason, report.sentence)
        assert (report.convention, report.decided_by) == (expected.convention.value, expected.decided_by), seed


@seeds(4, 100)
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("kind", WRONG)
def test_no_wrong_engine_is_accepted(tmp_path, kind, precision, seeds):
    for seed in range(seeds):
        report = report_of(kind, tmp_path / str(seed), seed, precision)
        assert (report.verdict, report.convention) == ("refused", None), seed
        assert report.reason in zoo.KINDS[kind].reasons, (seed, report.sentence)


@pytest.mark.parametrize("seed", [147, 252])
def test_a_right_engine_whose_vectors_hardly_depend_on_early_tokens_is_proved(tmp_path, seed):
    """In half precision, some sequence of these moves by a noise floor or so when its first half changes."""
    zoo.write_engine("exclusive-end", tmp_path, seed, precision="float16")
    with proof.load(tmp_path) as engine:
        assert engine.convention.value == "exclusive_end"


def test_both_conventions_give_the_same_vectors_once_proved(tmp_path):
    sequences = [np.array(ids) for ids in ([5], [6, 7, 8], [9] * 20)]
    vectors = []
    for kind in ("exclusive-end", "inclusive-end"):
        zoo.write_engine(kind, tmp_path / kind, seed=3)
        with proof.load(tmp_path / kind, threads=1) as engine:
            vectors.append(engine.extract(sequences))
    np.testing.assert_array_equal(*vectors)


def test_a_vector_is_that_of_its_own_sequence_whatever_else_is_in_the_batch(tmp_path):
    zoo.write_engine("inclusive-end", tmp_path)
    random = np.random.default_rng(0)
    sequences = [random.integers(3, 250, n) for n in (1, 9, 2, 24, 5)]
    with proof.load(tmp_path, threads=1) as engine:
        together = engine.extract(sequences)
        alone = np.concatenate([engine.extract([s]) for s in sequences])
        without_last = engine.extract([s[:-1] for s in sequences if len(s) > 1])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    assert np.abs(together[1:] - without_last).max(axis=1).min() > 0.01


def test_the_verdict_is_the_same_every_time(tmp_path):
    first, second = (report_of("bidirectional", tmp_path, 0, "float32") for _ in range(2))
    assert first == second
    assert first.to_json() == second.to_json()


def test_a_proven_engine_carries_its_evidence(tmp_path):
    record = zoo.write_engine("exclusive-end", tmp_path)
    with proof.load(tmp_path, threads=1) as engine:
        report = engine.report
        assert (engine.engine_id, engine.model_key) == (record.engine_id, record.model_key)
        assert (engine.dtype, engine.hidden_size, engine.limits) == ("float32", zoo.HIDDEN, zoo.LIMITS)
        assert engine.convention is GatherConvention.EXCLUSIVE_END
    assert {b.name: b.role for b in report.bindings} == {
        "input_ids": "packed",
        "position_ids": "packed",
        "packed_index": "packed",
        "last_token_ids": "per-sequence",
        "padded_index": "per-sequence",
        "hidden_states": "output",
    }
    exclusive, inclusive = report.detection.trials[-1].conventions
    assert (exclusive.last_token_ids, inclusive.last_token_ids) == ((1, 2, 4, 4), (1, 1, 3, 4))
    assert (exclusive.consistent, inclusive.consistent) == (True, False)
    assert inclusive.separation == 0
    assert [d.shape for d in report.dependence][:2] == ["micro", "micro, B gathered at its first token"]
    assert {d.shape for d in report.dependence} >= {"crowded", "full", "long"}
    full = next(d for d in report.dependence if d.shape == "full")
    assert (full.n_sequences, full.n_tokens) == (zoo.LIMITS.max_batch_size, zoo.LIMITS.max_num_tokens)
    assert max(d.longest for d in report.dependence) == zoo.LIMITS.max_input_len
    assert report.order_check.moved[-1] > MOVED
    written = json.loads(report.to_json())
    assert (written["engine_id"], written["limits"]["max_input_len"]) == (report.engine_id, zoo.LIMITS.max_input_len)
    assert [d["shape"] for d in written["dependence"]] == [d.shape for d in report.dependence]


def test_a_refusal_says_what_was_seen_expected_and_to_do_and_shows_the_evidence(tmp_path):
    zoo.write_engine("clipped-index", tmp_path)
    with pytest.raises(EngineRefused, match="in the batch “full”") as caught:
        proof.load(tmp_path, threads=1)
    wrong = [w for d in caught.value.report.dependence for e in d.experiments for w in e.wrong]
    assert "expected" in str(caught.value)
    assert "build an engine" in str(caught.value)
    assert wrong


@pytest.mark.parametrize("kind", ["exclusive-end", "unknown-tensor", "bidirectional"])
def test_special_tokens_are_never_fed(tmp_path, monkeypatch, kind):
    zoo.write_engine(kind, tmp_path)
    fed: set[int] = set()
    run = backend.Engine.run

    def watched(self, batch, **how):
        fed.update(batch.input_ids.tolist())
        return run(self, batch, **how)

    monkeypatch.setattr(backend.Engine, "run", watched)
    try:
        proof.load(tmp_path, threads=1).close()
    except EngineRefused:
        assert kind != "exclusive-end"
    assert fed.isdisjoint(load_tokenizer(tmp_path).special_ids)
    assert bool(fed) == (kind != "unknown-tensor")


@pytest.mark.parametrize("kind", ["bidirectional", "unknown-tensor", "non-finite"])
def test_a_refused_engine_is_closed(tmp_path, monkeypatch, kind):
    zoo.write_engine(kind, tmp_path)
    opened = []
    monkeypatch.setattr(
        proof.loading, "open_backend", lambda *a, **how: opened.append(open_backend(*a, **how)) or opened[-1]
    )
    with pytest.raises(EngineRefused):
        proof.load(tmp_path, threads=1)
    opened[0].set_shape("input_ids", (1,))
    with pytest.raises(EngineError, match="no buffers"):
        opened[0].host("input_ids")


def test_an_engine_that_fails_half_way_is_refused_with_the_evidence_so_far_and_closed(tmp_path, monkeypatch):
    zoo.write_engine("exclusive-end", tmp_path)
    run, passes = backend.Engine.run, []

    def failing(self, batch, **how):
        passes.append(self)
        if len(passes) == 20:
            raise EngineError("out of memory")
        return run(self, batch, **how)

    monkeypatch.setattr(backend.Engine, "run", failing)
    with pytest.raises(EngineRefused, match=r"failed-to-run.*out of memory") as caught:
        proof.load(tmp_path, threads=1)
    assert caught.value.report.detection is not None
    monkeypatch.undo()
    batch = proof.convention.guarded([np.array([5]), np.array([6])], GatherConvention.EXCLUSIVE_END)
    with pytest.raises(EngineError, match="closed"):
        passes[0].run(batch)
    with proof.load(tmp_path, threads=1) as engine:
        assert engine.report.verdict == "proved"


@pytest.mark.parametrize("name", [zoo.GRAPH_FILE, "tokenizer.json"])
def test_an_engine_whose_files_changed_is_refused(tmp_path, name):
    zoo.write_engine("exclusive-end", tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b"\n")
    with pytest.raises(EngineRefused, match=f"changed-files.*{name}"):
        proof.load(tmp_path)


def test_an_engine_directory_without_a_configuration_is_no_engine_at_all(tmp_path):
    with pytest.raises(EngineError, match=r"config\.json is missing") as caught:
        proof.load(tmp_path)
    assert not isinstance(caught.value, EngineRefused)


@pytest.mark.parametrize(
    ("sequences", "says"),
    [
        ([], "no sequence"),
        ([np.array([5]), np.array([], dtype=np.int32)], "without tokens"),
        ([np.array([5]), np.array([5, 273])], "sequence 1 has token ids from 5 to 273"),
        ([np.array([-1])], "sequence 0 has token ids from -1"),
        ([np.full(25, 5)], "beyond the engine's limits"),
    ],
)
def test_a_batch_that_is_no_batch_is_an_engine_error(tmp_path, sequences, says):
    zoo.write_engine("exclusive-end", tmp_path)
    with proof.load(tmp_path, threads=1) as engine, pytest.raises(EngineError, match=says):
        engine.extract(sequences)


def test_progress_is_told_in_words(tmp_path):
    zoo.write_engine("exclusive-end", tmp_path)
    told: list[str] = []
    proof.load(tmp_path, threads=1, progress=told.append).close()
    assert told[0].startswith("opening the engine")
    assert "proving a batch of 12 sequences and 64 tokens" in told
