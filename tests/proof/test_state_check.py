import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from resources import proof
from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.engine.build import build_engine
from resources.engine.config import read_engine_config
from resources.errors import EngineRefused
from resources.proof.state_check import advice_if_not_finite
from resources.records import Limits
from tests.tiny import tiny_gguf

LAYERS = 4


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """By precision, the engine of a model whose states grow beyond 65504 in its second layer; weights all fit."""
    folder = tmp_path_factory.mktemp("overflowing")
    down = 1e4 * np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    checkpoint = open_checkpoint(
        str(tiny_gguf(folder / "overflowing.gguf", layers=LAYERS, tensors={"blk.1.ffn_down.weight": down}))
    )
    tokenizer = checkpoint.tokenizer(TokenizerPolicy(max_tokens=64))
    return {
        precision: folder
        / build_engine(checkpoint, tokenizer, folder, precision=precision, limits=Limits(8, 128, 64)).directory
        for precision in ("float32", "float16")
    }


def test_an_engine_whose_float16_states_overflow_is_refused_with_the_count_of_each_layer(engines):
    with pytest.raises(
        EngineRefused, match=r"layers\.1 are not finite on the sample probes.*build the engine in float32"
    ) as caught:
        proof.load(engines["float16"], threads=1)
    report = caught.value.report
    assert (report.reason, report.detection) == ("non-finite", None)
    assert [s.name for s in report.states.layers] == [f"layers.{i}" for i in range(LAYERS)]
    counts = [s.non_finite for s in report.states.layers]
    assert counts[0] == 0 and min(counts[1:]) > 0
    assert all(0 < s.greatest <= report.states.largest == 65504 for s in report.states.layers)


def test_the_same_model_is_proved_in_float32_without_a_look_inside(engines):
    with proof.load(engines["float32"], threads=1) as engine:
        assert engine.report.states is None


def test_a_float16_engine_within_its_range_shows_how_near_the_end_it_is(tmp_path):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf")))
    tokenizer = checkpoint.tokenizer(TokenizerPolicy(max_tokens=64))
    built = build_engine(checkpoint, tokenizer, tmp_path, precision="float16", limits=Limits(8, 128, 64))
    before = sorted(p.name for p in (tmp_path / built.directory).iterdir())
    with proof.load(tmp_path / built.directory, threads=1) as engine:
        states = engine.report.states
        assert [s.non_finite for s in states.layers] == [0, 0]
        assert 0 < max(s.greatest for s in states.layers) < 100
        # Looking leaves nothing beside the engine, whose files are recorded.
        assert sorted(p.name for p in (tmp_path / built.directory).iterdir()) == before
        engine.require_unchanged()


@pytest.mark.parametrize(
    ("backend", "dtype", "says"),
    [
        ("onnxruntime", "float16", "build the engine in float32, since ONNX Runtime"),
        ("tensorrt", "bfloat16", "check the checkpoint's weights"),
        ("onnxruntime", "float32", "check the checkpoint's weights"),
    ],
)
def test_the_advice_fits_the_backend_and_the_dtype(engines, backend, dtype, says):
    config = replace(read_engine_config(engines["float32"]), backend=backend, dtype=dtype)
    assert says in advice_if_not_finite(config)


@pytest.mark.parametrize(("types", "says"), [(("HALF", "BF16"), "in bfloat16"), (("HALF",), "in float32.*no bfloat16")])
def test_the_advice_for_tensorrt_asks_which_types_its_version_has(engines, monkeypatch, types, says):
    trt = SimpleNamespace(
        __version__="8.6.1",
        IExecutionContext=SimpleNamespace(execute_async_v3=None),
        DataType=SimpleNamespace(**dict.fromkeys(types)),
    )
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    config = replace(read_engine_config(engines["float32"]), backend="tensorrt", dtype="float16")
    assert re.search(says, advice_if_not_finite(config))
