"""The packed graph equals a plain decoder, whatever shares the batch, and is made of portable primitives."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from resources.checkpoint import open_checkpoint
from resources.errors import CheckpointError, ConfigurationError
from resources.graph import write_packed_graph
from resources.reference_decoder import last_states
from tests.graph.running import Graph, cosines, inputs, relative_errors
from tests.tiny import tiny_gguf

SHAPES = {
    "grouped-query": {},
    "one head each": {"kv_heads": 4},
    "one key-value head": {"kv_heads": 1},
    "one head": {"heads": 1, "kv_heads": 1},
    "one layer": {"layers": 1},
    "five layers": {"layers": 5},
    "heads wider than the model": {"head_dim": 32},
    "heads narrower than the model": {"head_dim": 6},
    "odd widths": {"hidden": 36, "heads": 6, "kv_heads": 3, "ffn": 50},
}

LENGTHS = (1, 2, 3, 7, 8, 9, 17, 64)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(str(tiny_gguf(tmp_path_factory.mktemp("checkpoint") / "tiny.gguf")))


@pytest.fixture(scope="module")
def graph(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "packed.onnx"
    write_packed_graph(checkpoint, path)
    return Graph(path)


def sequences(seed, lengths=LENGTHS):
    random = np.random.default_rng(seed)
    return [random.integers(0, 273, length, dtype=np.int32) for length in lengths]


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_decoder_equals_a_plain_one(tmp_path, name):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", seed=len(name), **SHAPES[name])))
    write_packed_graph(checkpoint, tmp_path / "m.onnx")
    batch = sequences(1)
    assert relative_errors(Graph(tmp_path / "m.onnx")(batch), last_states(checkpoint, batch)).max() <= 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_a_vector_does_not_depend_on_what_shares_its_batch(checkpoint, graph, seed):
    batch = sequences(seed)
    alone = np.concatenate([graph([ids]) for ids in batch])
    order = np.random.default_rng(seed).permutation(len(batch))
    packed = np.empty_like(alone)
    packed[order] = graph([batch[i] for i in order])
    assert relative_errors(packed, alone).max() <= 1e-5
    assert relative_errors(alone, last_states(checkpoint, batch)).max() <= 1e-5


def test_the_last_position_of_the_configuration_can_be_used(checkpoint, graph):
    batch = sequences(3, lengths=(512, 1))
    assert relative_errors(graph(batch), last_states(checkpoint, batch)).max() <= 1e-5


def test_a_position_past_the_configuration_is_an_error(graph):
    with pytest.raises(Exception, match="out of data bounds"):
        graph(sequences(3, lengths=(513,)))


def test_one_is_subtracted_from_each_last_token_id_and_any_token_can_be_gathered(checkpoint, graph):
    batch = sequences(4, lengths=(3, 5))
    states = last_states(checkpoint, [ids[:end] for ids in batch for end in range(1, len(ids) + 1)])
    for first in range(1, 9):
        for second in (1, 8, first):
            gathered = graph(batch, np.array([first, second]))
            assert relative_errors(gathered, states[[first - 1, second - 1]]).max() <= 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_float16_is_within_its_rounding(tmp_path, seed):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", seed=seed)))
    write_packed_graph(checkpoint, tmp_path / "m.onnx", precision="float16")
    batch = sequences(seed)
    vectors = Graph(tmp_path / "m.onnx")(batch)
    assert vectors.dtype == np.float16
    assert relative_errors(vectors, last_states(checkpoint, batch)).max() <= 4e-3
    assert cosines(vectors, last_states(checkpoint, batch)).min() >= 0.99999


def test_bfloat16_is_within_its_rounding(checkpoint, tmp_path):
    # By onnx's own evaluator: ONNX Runtime has no kernels for bfloat16 on a CPU.
    write_packed_graph(checkpoint, tmp_path / "m.onnx", precision="bfloat16")
    batch = sequences(0)
    [vectors] = ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, inputs(batch))
    assert vectors.dtype == ml_dtypes.bfloat16
    vectors = vectors.astype(np.float32)
    assert relative_errors(vectors, last_states(checkpoint, batch)).max() <= 4e-2
    assert cosines(vectors, last_states(checkpoint, batch)).min() >= 0.999


def test_float16_states_too_large_to_square_are_normed_in_float32(tmp_path):
    # 600 squared overflows float16; the norm of such a state must still be right.
    embedding = 600 * np.random.default_rng(0).standard_normal((273, 64)).astype(np.float32)
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", tensors={"token_embd.weight": embedding})))
    write_packed_graph(checkpoint, tmp_path / "m.onnx", precision="float16")
    batch = sequences(0)
    assert relative_errors(Graph(tmp_path / "m.onnx")(batch), last_states(checkpoint, batch)).max() <= 4e-3


@pytest.mark.parametrize(("value", "precision", "advice"), [
    (1e6, "float16", "use float32, or fetch"),
    (np.inf, "float32", "fetch"),
    (np.nan, "float32", "fetch"),
])  # fmt: skip
def test_a_weight_that_is_not_finite_in_the_precision_is_named(tmp_path, value, precision, advice):
    norm = np.full(64, value, dtype=np.float32)
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", tensors={"blk.1.ffn_norm.weight": norm})))
    with pytest.raises(CheckpointError, match=rf"layers\.1\.mlp_norm\.weight is not finite in {precision}; {advice}"):
        write_packed_graph(checkpoint, tmp_path / "m.onnx", precision=precision)
    assert not (tmp_path / "m.onnx").exists()


def test_an_unknown_precision_is_refused(checkpoint, tmp_path):
    with pytest.raises(ConfigurationError, match="precision is 'float8'; expected one of"):
        write_packed_graph(checkpoint, tmp_path / "m.onnx", precision="float8")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_the_same_checkpoint_gives_the_same_bytes(checkpoint, tmp_path, precision):
    contents = []
    for folder in ("a", "b"):
        path = tmp_path / folder / "packed.onnx"
        path.parent.mkdir()
        write_packed_graph(checkpoint, path, precision=precision)
        contents.append((path.read_bytes(), path.with_name("packed.onnx.data").read_bytes()))
    assert contents[0] == contents[1]


def test_the_interface_is_that_of_a_packed_batch(graph):
    assert {i.name: (i.type, i.shape) for i in graph.session.get_inputs()} == {
        "input_ids": ("tensor(int32)", ["num_tokens"]),
        "position_ids": ("tensor(int32)", ["num_tokens"]),
        "last_token_ids": ("tensor(int32)", ["num_sequences"]),
        "padded_index": ("tensor(int32)", ["num_sequences", "padded_length"]),
        "packed_index": ("tensor(int32)", ["num_tokens"]),
    }
    (output,) = graph.session.get_outputs()
    assert (output.name, output.type, output.shape) == ("hidden_states", "tensor(float)", ["num_sequences", 64])


def test_writing_holds_about_one_layer_in_memory(tmp_path):
    shape = {"hidden": 128, "ffn": 1024, "layers": 12}
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", **shape)))
    tracemalloc.start()
    try:
        write_packed_graph(checkpoint, tmp_path / "m.onnx")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    one_layer = 4 * (3 * 128 * 1024 + 3 * 128 * 128)
    assert (tmp_path / "m.onnx.data").stat().st_size > 11 * one_layer
    assert peak < 2 * one_layer
