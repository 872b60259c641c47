from dataclasses import replace

import numpy as np
import pytest

from resources.engine.bindings import Role, TensorInfo, classify, require_complete
from resources.engine.config import EngineConfig
from resources.errors import EngineError
from resources.packing import pack
from resources.records import GatherConvention, Limits

CONFIG = EngineConfig(
    engine_id="e",
    backend="onnxruntime",
    plan="model.onnx",
    dtype="float16",
    hidden_size=64,
    vocab_size=100,
    num_hidden_layers=3,
    reach=None,
    limits=Limits(max_batch_size=8, max_num_tokens=256, max_input_len=30),
    kv_cache_type="disabled",
    packed=True,
    world_size=1,
    provenance=None,
)
OUTPUT = TensorInfo("hidden_states", "float16", (-1, 64), is_input=False)


def tensor(name: str, *shape: int, dtype: str = "int32", location: str = "device") -> TensorInfo:
    return TensorInfo(name, dtype, shape, is_input=True, location=location)


IDS, LAST = tensor("input_ids", -1), tensor("last_token_ids", -1)

OURS = (IDS, tensor("position_ids", -1), LAST, tensor("padded_index", -1, -1), tensor("packed_index", -1), OUTPUT)
TENSORRT_LLM = (
    IDS,
    tensor("position_ids", -1),
    LAST,
    tensor("context_lengths", -1),
    tensor("host_context_lengths", -1, location="host"),
    tensor("host_request_types", -1, location="host"),
    tensor("host_max_attention_window_sizes", 3, location="host"),
    tensor("host_sink_token_length", 1, location="host"),
    tensor("host_runtime_perf_knobs", 16, dtype="int64", location="host"),
    tensor("host_context_progress", 1, dtype="int64", location="host"),
    OUTPUT,
)


@pytest.mark.parametrize("tensors", [OURS, TENSORRT_LLM], ids=["ours", "TensorRT-LLM's"])
def test_every_tensor_of_a_known_layout_gets_a_role_and_a_maximum(tensors):
    bindings = classify(tensors, CONFIG)
    require_complete(bindings, CONFIG)
    maximum = {b.tensor.name: b.maximum for b in bindings}
    assert maximum["input_ids"] == (256,)
    assert maximum["last_token_ids"] == (8,)
    assert maximum["hidden_states"] == (8, 64)
    assert maximum.get("padded_index", (8, 32)) == (8, 32)
    roles = {b.tensor.name: b.role for b in bindings}
    assert roles["position_ids"] is Role.PACKED
    assert roles["last_token_ids"] is Role.PER_SEQUENCE
    assert roles["hidden_states"] is Role.OUTPUT


def test_values_follow_the_batch_and_constants_the_configuration():
    batch = pack([np.array([5]), np.array([6, 7])], GatherConvention.EXCLUSIVE_END)
    bindings = {b.tensor.name: b for b in classify(TENSORRT_LLM, CONFIG)}
    seen = {name: b.values(batch).tolist() for name, b in bindings.items() if b.values}
    assert seen["input_ids"] == [5, 6, 7]
    assert seen["position_ids"] == [0, 0, 1]
    assert seen["last_token_ids"] == [1, 3]
    assert seen["context_lengths"] == seen["host_context_lengths"] == [1, 2]
    assert seen["host_request_types"] == [0, 0]
    assert {name: b.constant for name, b in bindings.items() if b.role is Role.STATIC} == {
        "host_max_attention_window_sizes": 30,
        "host_sink_token_length": 0,
        "host_runtime_perf_knobs": -1,
        "host_context_progress": 0,
    }


@pytest.mark.parametrize(
    "stranger",
    [
        tensor("past_key_value_0", -1, 2, 4, -1, 16, dtype="float16"),
        TensorInfo("logits", "float32", (-1, 100), is_input=False),
        TensorInfo("input_ids", "int32", (-1,), is_input=False),
        tensor("hidden_states", -1, 64),
    ],
    ids=lambda t: t.name,
)
def test_a_tensor_of_unknown_meaning_is_named_with_what_is_known(stranger):
    with pytest.raises(EngineError, match=stranger.name) as caught:
        classify((*OURS, stranger), CONFIG)
    assert "host_request_types" in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ((IDS, OUTPUT), "lacks last_token_ids"),
        ((IDS, LAST), "lacks hidden_states"),
        ((tensor("input_ids", -1, -1), LAST, OUTPUT), r"input_ids is int32 \[-1, -1\]"),
        ((tensor("input_ids", -1, dtype="float32"), LAST, OUTPUT), "input_ids is float32"),
        ((IDS, tensor("last_token_ids", 8), OUTPUT), "fixed first dimension 8"),
        ((IDS, LAST, replace(OUTPUT, shape=(-1, 63))), r"hidden_states is float16 \[-1, 63\]"),
        ((IDS, LAST, replace(OUTPUT, dtype="float32")), "hidden_states is float32"),
        ((IDS, LAST, OUTPUT, tensor("host_runtime_perf_knobs", 12)), "host_runtime_perf_knobs"),
    ],
)
def test_a_tensor_that_does_not_fit_the_batch_is_named(tensors, says):
    with pytest.raises(EngineError, match=says):
        require_complete(classify(tensors, CONFIG), CONFIG)
