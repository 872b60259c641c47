"""A foreign engine becomes one of this project's: copied whole, its tokenizer named, and bound to both by its id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from resources import proof
from resources.checkpoint import Tokenizer, TokenizerPolicy, open_checkpoint
from resources.engine.adopt import adopt_engine
from resources.engine.config import FOREIGN_PLAN
from resources.errors import EngineError, EngineRefused
from tests import zoo
from tests.engine.stand_in import StandIn, write_plan
from tests.tiny import tiny_gguf


@pytest.fixture
def foreign(tmp_path, monkeypatch) -> Path:
    """A TensorRT-LLM engine as its builder leaves it: a configuration and a plan, and no tokenizer."""
    StandIn().install(monkeypatch)
    directory = tmp_path / "theirs"
    zoo.write_foreign_engine(directory, to_plan=write_plan)
    for path in directory.glob("tokenizer*"):
        path.unlink()
    return directory


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    return open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf"))).tokenizer(TokenizerPolicy())


def test_an_adopted_engine_is_proved_and_gives_its_own_vectors(tmp_path, foreign, tokenizer):
    record = adopt_engine(foreign, tokenizer, tmp_path / "engines")
    zoo.write_engine("exclusive-end", tmp_path / "ours")
    sequences = [np.arange(5, 5 + n) for n in (1, 9, 2, 24)]
    with (
        proof.load(tmp_path / "engines" / record.directory, engine_id=record.engine_id) as engine,
        proof.load(tmp_path / "ours", threads=1) as ours,
    ):
        assert (engine.model_key, engine.tokenizer_id) == (record.model_key, tokenizer.tokenizer_id)
        np.testing.assert_allclose(engine.extract(sequences), ours.extract(sequences), rtol=1e-5, atol=1e-5)


def test_the_foreign_folder_stays_as_it_was_and_is_no_longer_needed(tmp_path, foreign, tokenizer):
    before = {p.name: p.read_bytes() for p in foreign.iterdir()}
    record = adopt_engine(foreign, tokenizer, tmp_path / "engines")
    assert {p.name: p.read_bytes() for p in foreign.iterdir()} == before
    (foreign / FOREIGN_PLAN).unlink()
    proof.load(tmp_path / "engines" / record.directory).close()


def test_it_is_adopted_once_and_again_with_another_tokenizer(tmp_path, foreign, tokenizer):
    other = open_checkpoint(str(tmp_path / "tiny.gguf")).tokenizer(TokenizerPolicy(add_bos=True))
    records = [adopt_engine(foreign, t, tmp_path / "engines") for t in (tokenizer, tokenizer, other)]
    assert records[0] == records[1]
    assert records[2].model_key != records[0].model_key
    assert len(list((tmp_path / "engines").iterdir())) == 2


def test_a_plan_that_was_changed_after_adoption_is_refused(tmp_path, foreign, tokenizer):
    directory = tmp_path / "engines" / adopt_engine(foreign, tokenizer, tmp_path / "engines").directory
    plan = directory / FOREIGN_PLAN
    plan.write_bytes(plan.read_bytes() + b"x")
    with pytest.raises(EngineRefused, match=r"changed-files.*rank0\.engine has digest"):
        proof.load(directory)


@pytest.mark.parametrize(
    ("seen", "instead", "says"),
    [
        ("DISABLED", "PAGED", "kv_cache_type disabled"),
        ('"remove_input_padding": true', '"remove_input_padding": false', "remove_input_padding enable"),
        ('"world_size": 1', '"world_size": 2', "expected 1"),
        ('"vocab_size": ', '"vocab_size": 1, "was": ', "name the model that the engine was built from"),
        ('"version"', '"fabric": {}, "version"', "fabric.backend is None"),
    ],
)
def test_what_cannot_be_used_is_refused_before_it_is_copied(tmp_path, foreign, tokenizer, seen, instead, says):
    config = foreign / "config.json"
    assert seen in config.read_text()
    config.write_text(config.read_text().replace(seen, instead))
    with pytest.raises(EngineError, match=says):
        adopt_engine(foreign, tokenizer, tmp_path / "engines")
    assert not (tmp_path / "engines").exists()


def test_one_of_our_own_is_not_adopted(tmp_path, tokenizer):
    zoo.write_engine("exclusive-end", tmp_path / "ours")
    with pytest.raises(EngineError, match="it is one of this project's engines; register it as it is"):
        adopt_engine(tmp_path / "ours", tokenizer, tmp_path / "engines")


def test_without_a_tokenizer_it_says_how_to_register_it(foreign):
    with pytest.raises(EngineRefused, match="register a foreign engine with the engine asset's `directory`"):
        proof.load(foreign)
