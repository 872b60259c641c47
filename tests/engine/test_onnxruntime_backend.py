import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from resources.engine.bindings import TensorInfo, classify
from resources.engine.config import read_engine_config
from resources.engine.onnxruntime_backend import OnnxRuntimeBackend
from resources.errors import EngineError
from tests import zoo


@pytest.mark.parametrize(("content", "says"), [(None, "is missing"), (b"not a graph", "cannot be opened")])
def test_a_graph_that_cannot_be_opened_is_named(tmp_path, content, says):
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(EngineError, match=f"model.onnx {says}"):
        OnnxRuntimeBackend(tmp_path / "model.onnx", zoo.LIMITS)


def test_tensors_are_exposed_with_their_dynamic_dimensions(tmp_path):
    zoo.write_engine("exclusive-end", tmp_path, precision="float16")
    tensors = {t.name: t for t in OnnxRuntimeBackend(tmp_path / zoo.GRAPH_FILE, zoo.LIMITS, threads=1).tensors()}
    assert tensors["padded_index"] == TensorInfo("padded_index", "int32", (-1, -1), is_input=True)
    assert tensors["hidden_states"] == TensorInfo("hidden_states", "float16", (-1, zoo.HIDDEN), is_input=False)


def test_bfloat16_bits_pass_through_a_buffer_unchanged(tmp_path):
    shape = ["num_tokens"]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["input_ids"], ["hidden_states"])],
        "bits",
        [helper.make_tensor_value_info("input_ids", TensorProto.BFLOAT16, shape)],
        [helper.make_tensor_value_info("hidden_states", TensorProto.BFLOAT16, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    zoo.write_engine("exclusive-end", tmp_path / "engine")
    backend = OnnxRuntimeBackend(tmp_path / "model.onnx", zoo.LIMITS, threads=1)
    backend.allocate(classify(backend.tensors(), read_engine_config(tmp_path / "engine")))
    bits = np.arange(0x3F80, 0x3F90, dtype=np.uint16)
    for name in ("input_ids", "hidden_states"):
        backend.set_shape(name, (16,))
        backend.bind(name)
    backend.host("input_ids")[...] = bits
    backend.execute()
    np.testing.assert_array_equal(backend.host("hidden_states"), bits)


def test_a_batch_that_cannot_run_is_an_engine_error(tmp_path):
    zoo.write_engine("inclusive-end", tmp_path)
    backend = OnnxRuntimeBackend(tmp_path / zoo.GRAPH_FILE, zoo.LIMITS, threads=1)
    backend.allocate(classify(backend.tensors(), read_engine_config(tmp_path)))
    for tensor in backend.tensors():
        backend.set_shape(
            tensor.name, {"padded_index": (1, 8), "hidden_states": (1, zoo.HIDDEN)}.get(tensor.name, (1,))
        )
        backend.bind(tensor.name)
    backend.host("last_token_ids")[...] = 1
    with pytest.raises(EngineError, match="could not run the batch"):
        backend.execute()


@pytest.mark.parametrize("use", [lambda b: b.host("input_ids"), lambda b: b.use_profile(1)], ids=["host", "profile"])
def test_what_it_does_not_have_is_an_engine_error(tmp_path, use):
    zoo.write_engine("exclusive-end", tmp_path)
    backend = OnnxRuntimeBackend(tmp_path / zoo.GRAPH_FILE, zoo.LIMITS, threads=1)
    backend.set_shape("input_ids", (1,))
    with pytest.raises(EngineError):
        use(backend)
