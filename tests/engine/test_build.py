import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from resources import proof
from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.engine import build
from resources.engine.build import build_engine
from resources.engine.config import read_engine_config, read_engine_record
from resources.errors import EngineError
from resources.records import Limits
from tests.checkpoint.architectures.references import CHECKPOINTS
from tests.tiny import tiny_gguf

LIMITS = Limits(max_batch_size=8, max_num_tokens=64, max_input_len=32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(str(tiny_gguf(tmp_path_factory.mktemp("checkpoint") / "tiny.gguf")))


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return checkpoint.tokenizer(TokenizerPolicy())


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_what_is_built_from_a_checkpoint_is_proved(checkpoint, tokenizer, tmp_path, precision):
    record = build_engine(checkpoint, tokenizer, tmp_path, precision=precision, limits=LIMITS)
    assert record.directory == record.engine_id[:16]
    assert record == read_engine_record(tmp_path / record.directory)
    with proof.load(tmp_path / record.directory, threads=1) as engine:
        assert (engine.engine_id, engine.model_key, engine.dtype) == (record.engine_id, record.model_key, precision)
        assert engine.convention.value == "exclusive_end"
        assert engine.extract(tokenizer.encode(["one", "two words"])).shape == (2, checkpoint.config.hidden_size)


def test_a_model_whose_windows_end_before_the_longest_sequence_begins_is_proved(tokenizer, tmp_path):
    folder = shutil.copytree(CHECKPOINTS / "mistral", tmp_path / "mistral")
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": tokenizer.vocab_size}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = np.random.default_rng(1).normal(size=(tokenizer.vocab_size, 32)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    limits = Limits(max_batch_size=8, max_num_tokens=256, max_input_len=128)
    windowed = open_checkpoint(str(folder))
    assert windowed.config.reach == 2 * (24 - 1) + 1
    record = build_engine(windowed, tokenizer, tmp_path, limits=limits)
    assert read_engine_config(tmp_path / record.directory).reach == 47
    with proof.load(tmp_path / record.directory, threads=1) as engine:
        assert engine.convention.value == "exclusive_end"


def test_building_again_keeps_the_engine_and_leaves_nothing_else(checkpoint, tokenizer, tmp_path):
    first = build_engine(checkpoint, tokenizer, tmp_path, limits=LIMITS)
    marked = (tmp_path / first.directory / "config.json").stat().st_ino
    assert build_engine(checkpoint, tokenizer, tmp_path, limits=LIMITS) == first
    assert (tmp_path / first.directory / "config.json").stat().st_ino == marked
    assert [p.name for p in tmp_path.iterdir()] == [first.directory]


def damage(name: str):
    return lambda folder: (folder / name).write_bytes(b"{}")


@pytest.mark.parametrize(
    "harm",
    [
        damage("model.onnx"),
        damage("tokenizer.json"),
        damage("config.json"),
        damage("not-of-the-engine"),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "sub").mkdir(),
        lambda folder: (shutil.rmtree(folder), folder.write_bytes(b"no folder")),
    ],
    ids=["model.onnx", "tokenizer.json", "config.json", "another file", "no config.json", "a folder", "no folder"],
)
def test_an_engine_that_was_damaged_is_put_aside_and_built_anew(checkpoint, tokenizer, tmp_path, harm):
    first = build_engine(checkpoint, tokenizer, tmp_path, limits=LIMITS)
    harm(tmp_path / first.directory)
    assert build_engine(checkpoint, tokenizer, tmp_path, limits=LIMITS) == first
    assert [p.name for p in tmp_path.glob(".damaged-*/*")] == [first.directory]
    proof.load(tmp_path / first.directory, threads=1).close()
    assert build_engine(checkpoint, tokenizer, tmp_path, limits=LIMITS) == first


@pytest.mark.parametrize("name", [".building-xyz", "renamed"])
def test_a_folder_that_its_engine_does_not_name_is_not_kept(checkpoint, tokenizer, tmp_path, name):
    first = build_engine(checkpoint, tokenizer, tmp_path, limits=LIMITS)
    (tmp_path / first.directory).rename(tmp_path / name)
    assert build_engine(checkpoint, tokenizer, tmp_path, limits=LIMITS) == first
    assert (tmp_path / first.directory).is_dir()


def test_an_engine_of_other_versions_is_not_kept_in_its_place(checkpoint, tokenizer, tmp_path, monkeypatch):
    first = build_engine(checkpoint, tokenizer, tmp_path, limits=LIMITS)
    monkeypatch.setattr(build.importlib.metadata, "version", lambda name: "0.0")
    second = build_engine(checkpoint, tokenizer, tmp_path, limits=LIMITS)
    assert (second.versions["onnx"], second.model_key) == ("0.0", first.model_key)
    assert second.engine_id != first.engine_id


def test_an_engine_with_other_limits_is_another_engine_of_the_same_model(checkpoint, tokenizer, tmp_path):
    engines = [build_engine(checkpoint, tokenizer, tmp_path, limits=Limits(8, 64, length)) for length in (16, 32)]
    assert engines[0].engine_id != engines[1].engine_id
    assert engines[0].model_key == engines[1].model_key


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"backend": "tpu"}, "backend 'tpu' cannot be built; expected one of"),
        ({"precision": "bfloat16"}, "runs float32 and float16"),
        ({"limits": Limits(8, 4096, 4096)}, "max_input_len is 4096; the checkpoint's positions end at 512"),
    ],
)
def test_what_cannot_be_built_is_said_and_leaves_nothing(checkpoint, tokenizer, tmp_path, how, says):
    with pytest.raises(EngineError, match=says):
        build_engine(checkpoint, tokenizer, tmp_path, **{"limits": LIMITS, **how})
    assert list(tmp_path.iterdir()) == []


def test_an_engine_gives_the_same_vectors_after_its_folder_has_moved(checkpoint, tokenizer, tmp_path):
    record = build_engine(checkpoint, tokenizer, tmp_path / "a", limits=LIMITS)
    sequences = tokenizer.encode(["here", "there and back"])
    with proof.load(tmp_path / "a" / record.directory, threads=1) as engine:
        before = engine.extract(sequences)
    (tmp_path / "a").rename(tmp_path / "b")
    with proof.load(tmp_path / "b" / record.directory, threads=1) as engine:
        np.testing.assert_array_equal(engine.extract(sequences), before)
