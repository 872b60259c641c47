from dataclasses import replace

import numpy as np
import pytest

from resources import proof
from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.engine.backend import open_backend
from resources.engine.bindings import classify
from resources.engine.build import build_engine
from resources.engine.config import read_engine_config
from resources.engine.layer_states import layer_outputs
from resources.errors import EngineError
from resources.packing import pack
from resources.records import GatherConvention, Limits
from tests import zoo
from tests.tiny import tiny_gguf

SEQUENCES = [np.array([5, 6, 7]), np.array([8])]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    checkpoint = open_checkpoint(str(tiny_gguf(folder / "tiny.gguf", layers=3)))
    limits = Limits(8, 128, 64)
    record = build_engine(checkpoint, checkpoint.tokenizer(TokenizerPolicy(max_tokens=64)), folder, limits=limits)
    return checkpoint, folder / record.directory


def outputs(directory, **change):
    config = read_engine_config(directory)
    backend = open_backend(directory, config, threads=1)
    bindings = classify(backend.tensors(), config)
    backend.close()
    batch = pack(SEQUENCES, GatherConvention.EXCLUSIVE_END)
    return layer_outputs(directory, replace(config, **change), bindings, batch, threads=1)


def test_every_layers_state_is_there_and_the_last_ones_norm_is_the_vector(built):
    checkpoint, directory = built
    found = outputs(directory)
    assert [o.name for o in found] == [f"layers.{i}/output" for i in range(3)]
    assert [o.values.shape for o in found] == [(4, 64), (4, 64), (2, 64)]
    last = found[-1].values.astype(np.float64)
    normed = last / np.sqrt((last**2).mean(-1, keepdims=True) + checkpoint.config.residual.norm.epsilon)
    with proof.load(directory, threads=1) as engine:
        np.testing.assert_allclose(
            normed * checkpoint.tensor("final_norm.weight"), engine.extract(SEQUENCES), rtol=1e-4, atol=1e-5
        )


def test_a_backend_or_a_graph_without_named_layers_shows_none(built, tmp_path):
    _, directory = built
    assert outputs(directory, backend="tensorrt") == ()
    zoo.write_engine("exclusive-end", tmp_path)
    assert outputs(tmp_path) == ()


def test_a_graph_that_cannot_run_is_an_engine_error(built, tmp_path):
    _, directory = built
    (tmp_path / "model.onnx").write_bytes((directory / "model.onnx").read_bytes())
    config = read_engine_config(directory)
    backend = open_backend(directory, config, threads=1)
    bindings = classify(backend.tensors(), config)
    backend.close()
    with pytest.raises(EngineError, match="layer by layer"):
        layer_outputs(tmp_path, config, bindings, pack(SEQUENCES, GatherConvention.EXCLUSIVE_END), threads=1)
