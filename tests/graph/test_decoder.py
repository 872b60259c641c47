"""The pieces of a decoder do what its configuration says, in every precision and as every backend takes them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from resources.checkpoint import open_checkpoint
from resources.checkpoint.config import tensor_specs
from resources.graph import write_packed_graph
from tests.checkpoint.architectures.references import CHECKPOINTS, NAMES, Reference
from tests.graph.random_checkpoint import RandomCheckpoint
from tests.graph.running import Graph, cosines, inputs, relative_errors

OPERATORS = {
    *("Add", "Cast", "Concat", "Div", "Erf", "Gather", "Greater", "Identity", "MatMul", "Mul", "Pow", "Range"),
    *("ReduceMean", "Reshape", "Shape", "Sigmoid", "Softmax", "Split", "Sqrt", "Sub", "Tanh", "Transpose"),
    *("Unsqueeze", "Where"),
}
"""Primitives of opset 17 that TensorRT 8.6's parser takes."""

LENGTH = 12


def graph_of(checkpoint, folder):
    write_packed_graph(checkpoint, folder / "packed.onnx")
    return Graph(folder / "packed.onnx")


@pytest.mark.parametrize("window", [1, 2, 5, LENGTH - 1, LENGTH, LENGTH + 1, None])
def test_a_query_sees_as_many_keys_as_its_window_and_its_own_is_one(tmp_path, window):
    graph = graph_of(RandomCheckpoint(model_type="mistral", sliding_window=window), tmp_path)
    ids = np.arange(1, LENGTH + 1, dtype=np.int32)
    company = np.arange(30, dtype=np.int32)
    before = graph([company, ids])[1]
    seen = set()
    for i in range(LENGTH):
        changed = ids.copy()
        changed[i] += 20
        if relative_errors(graph([company, changed])[1:], before[None])[0] > 1e-4:
            seen.add(i)
    assert seen == set(range(max(0, LENGTH - (window or LENGTH)), LENGTH))


def test_a_layer_without_rotary_embedding_does_not_see_the_order_of_its_keys(tmp_path):
    ids = np.arange(1, LENGTH + 1, dtype=np.int32)
    shuffled = np.concatenate([ids[-2::-1], ids[-1:]])
    for turned, same in ((0, True), (1, False)):
        checkpoint = RandomCheckpoint(model_type="smollm3", no_rope_layers=[turned])
        a, b = graph_of(checkpoint, tmp_path)([ids, shuffled])
        assert bool(relative_errors(a[None], b[None])[0] < 1e-5) is same


def test_only_a_sequence_that_is_longer_than_the_original_length_turns_by_the_long_frequencies(tmp_path):
    original, longer = 8, [2.0, 3.0, 4.0, 5.0]
    scaling = {"type": "longrope", "attention_factor": 1.0, "short_factor": [1.0] * 4, "long_factor": longer}
    plain, scaled, stretched = (
        RandomCheckpoint(model_type="phi3", original_max_position_embeddings=original, rope_scaling=settings)
        for settings in (None, scaling, {**scaling, "short_factor": longer})
    )
    batch = [np.arange(n, dtype=np.int32) for n in (original, original + 1, 3, 40)]
    vectors, short, long = (graph_of(c, tmp_path)(batch) for c in (scaled, plain, stretched))
    assert relative_errors(vectors[[0, 2]], short[[0, 2]]).max() == 0
    assert relative_errors(vectors[[1, 3]], long[[1, 3]]).max() == 0
    assert relative_errors(short, long).min() > 1e-4


def test_a_score_cap_bounds_the_scores(tmp_path):
    # With a cap near nothing every key weighs the same, as with a scale of nothing.
    ids = [np.arange(LENGTH, dtype=np.int32)]
    capped, even, free = (
        graph_of(RandomCheckpoint(model_type="gemma2", head_dim=8, **changes), tmp_path)(ids)
        for changes in (
            {"attn_logit_softcapping": 1e-6},
            {"attn_logit_softcapping": None, "query_pre_attn_scalar": 1e12},
            {"attn_logit_softcapping": None},
        )
    )
    assert relative_errors(capped, even).max() < 1e-4 < relative_errors(free, even).max()


@pytest.mark.parametrize("name", NAMES)
def test_every_canonical_tensor_is_read_once(tmp_path, name, monkeypatch):
    checkpoint = open_checkpoint(str(CHECKPOINTS / name))
    read = []

    def counted(reads):
        return lambda name: read.append(name) or reads(name)

    for way in ("tensor", "pieces"):
        monkeypatch.setattr(checkpoint, way, counted(getattr(checkpoint, way)))
    write_packed_graph(checkpoint, tmp_path / "packed.onnx")
    assert sorted(read) == sorted(spec.name for spec in tensor_specs(checkpoint.config))


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_the_graph_is_valid_and_made_of_primitives_that_every_backend_has(tmp_path, name, precision):
    path = tmp_path / "packed.onnx"
    write_packed_graph(open_checkpoint(str(CHECKPOINTS / name)), path, precision=precision)
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path, load_external_data=False)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    nodes = model.graph.node
    assert {n.op_type for n in nodes} <= OPERATORS
    assert {n.domain for n in nodes} == {""}
    assert not [a for n in nodes if n.op_type == "Shape" for a in n.attribute]
    assert len({n.name for n in nodes}) == len(nodes)


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "granite", "olmo2", "phi3_longrope"])
def test_bfloat16_is_within_its_rounding(tmp_path, name):
    # By onnx's own evaluator: ONNX Runtime has no kernels for bfloat16 on a CPU.
    write_packed_graph(open_checkpoint(str(CHECKPOINTS / name)), tmp_path / "packed.onnx", precision="bfloat16")
    reference = Reference.read(name).up_to(17)
    [vectors] = ReferenceEvaluator(str(tmp_path / "packed.onnx")).run(None, inputs(reference.sequences))
    assert vectors.dtype == ml_dtypes.bfloat16
    vectors = vectors.astype(np.float32)
    assert relative_errors(vectors, reference.vectors).max() <= 4e-2
    assert cosines(vectors, reference.vectors).min() >= 0.999
