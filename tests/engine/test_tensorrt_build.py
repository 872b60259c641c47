"""Building plans: profiles; and the real parser and builder of TensorRT-RTX, which need no GPU."""

from __future__ import annotations

import logging
import re
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.checkpoint import open_checkpoint
from resources.engine import tensorrt_versions
from resources.engine.tensorrt_build import build_plan, float32_tensors, profiles, timing_cache_path
from resources.errors import EngineError
from resources.graph import write_packed_graph
from resources.packing import padded, plan
from resources.proof.layouts import large_layouts, micro_layouts
from resources.records import Limits
from tests import zoo
from tests.checkpoint.architectures.references import CHECKPOINTS
from tests.tiny import tiny_gguf

pytestmark = pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX")

LIMITS = Limits(max_batch_size=32, max_num_tokens=1024, max_input_len=512)

any_limits = st.builds(
    Limits, max_batch_size=st.integers(4, 3000), max_num_tokens=st.integers(5, 9000), max_input_len=st.integers(2, 9000)
)


@pytest.fixture(scope="module")
def trt() -> Any:
    """TensorRT-RTX: the interface of TensorRT 11, and a builder for a GPU that need not be there."""
    return pytest.importorskip("tensorrt_rtx_bindings", reason="install the extra `tensorrt-tests`")


@pytest.fixture(scope="module", params=["float32", "float16", "bfloat16"])
def graph(request, tmp_path_factory) -> tuple[Path, str]:
    """A tiny checkpoint's packed graph, and its precision."""
    folder = tmp_path_factory.mktemp("graph")
    write_packed_graph(
        open_checkpoint(str(tiny_gguf(folder / "tiny.gguf"))), folder / "g.onnx", precision=request.param
    )
    return folder / "g.onnx", request.param


def build(trt: Any, path: Path, target: Path, **how: Any) -> Path:
    build_plan(trt, path, target, **{"limits": LIMITS, "num_hidden_layers": 2, "compute_capability": "SM89", **how})
    return target


@given(any_limits, st.data())
def test_every_planned_batch_fits_a_profile(limits, data):
    longest = min(limits.max_input_len, limits.max_num_tokens)
    lengths = data.draw(st.lists(st.integers(1, longest), max_size=60))
    for batch in plan(lengths, limits):
        taken = [lengths[i] for i in batch]
        assert any(
            len(taken) <= p.limits.max_batch_size
            and sum(taken) <= p.limits.max_num_tokens
            and padded(max(taken)) <= p.limits.max_input_len
            for p in profiles(limits)
        )


@given(any_limits)
def test_every_batch_of_the_proof_fits_the_profile_that_it_is_for(limits):
    for profile in profiles(limits):
        most = profile.limits
        own = Limits(most.max_batch_size, most.max_num_tokens, min(most.max_input_len, limits.max_input_len))
        for layout in (*micro_layouts(), *large_layouts(own)):
            assert len(layout.lengths) <= most.max_batch_size
            assert layout.lengths.sum() <= most.max_num_tokens
            assert padded(int(layout.lengths.max())) <= most.max_input_len


@given(any_limits)
def test_a_profile_is_tuned_for_a_batch_that_it_takes(limits):
    for profile in profiles(limits):
        for name in ("max_batch_size", "max_num_tokens", "max_input_len"):
            assert 1 <= getattr(profile.tuned_for, name) <= getattr(profile.limits, name)


def test_profiles_of_a_serving_size():
    first, second = profiles(Limits(max_batch_size=512, max_num_tokens=16384, max_input_len=512))
    assert (first.limits, second.limits) == (Limits(512, 16384, 128), Limits(128, 16384, 512))
    assert (first.tuned_for, second.tuned_for) == (Limits(256, 16384, 64), Limits(64, 16384, 256))


def test_the_packed_graph_parses_and_builds_and_shows_its_progress(trt, graph, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="fabric.engine")
    monkeypatch.setattr(tensorrt_versions, "PROGRESS_SECONDS", 0.0)
    path, precision = graph
    built = build(trt, path, tmp_path / "plan", precision=precision, timing_cache=tmp_path / ".timing")
    assert built.stat().st_size > path.with_name("g.onnx.data").stat().st_size
    assert (tmp_path / ".timing").stat().st_size > 0
    assert f"in {precision} with 2 profiles" in caplog.text
    assert re.search(r"building: .+, step \d+ of \d+", caplog.text)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", ["gemma3", "gpt2", "gpt_neox", "olmo2", "phi3_longrope"])
def test_the_graphs_of_other_families_parse_and_build(trt, tmp_path, family, precision):
    write_packed_graph(open_checkpoint(str(CHECKPOINTS / family)), tmp_path / "g.onnx", precision=precision)
    limits = Limits(max_batch_size=32, max_num_tokens=1024, max_input_len=128)
    assert build(trt, tmp_path / "g.onnx", tmp_path / "plan", precision=precision, limits=limits).stat().st_size


@pytest.mark.parametrize("kind", ["exclusive-end", "inclusive-end", "tensorrt-llm-inputs", "bidirectional"])
def test_engines_of_the_zoo_parse_and_build(trt, tmp_path, kind):
    def to_plan(graph: Path, plan: Path, limits: Limits) -> dict[str, str]:
        build(trt, graph, plan, precision="float16", limits=limits, num_hidden_layers=1)
        return {"tensorrt": trt.__version__}

    record = zoo.write_engine(kind, tmp_path, precision="float16", to_plan=to_plan)
    assert (record.backend, record.versions) == ("tensorrt", {"tensorrt": trt.__version__})


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"precision": "float8"}, "builds float32, float16, bfloat16; use one of them"),
        ({"precision": "float32", "tactic_sources": ("CUDNN",)}, r"tactic sources \['CUDNN'\] are unknown"),
    ],
)
def test_what_a_version_does_not_have_is_named(trt, graph, tmp_path, how, says):
    with pytest.raises(EngineError, match=says):
        build(trt, graph[0], tmp_path / "plan", **how)


def test_a_graph_that_does_not_parse_says_why(trt, tmp_path):
    (tmp_path / "g.onnx").write_bytes(b"no graph")
    with pytest.raises(EngineError, match=r"cannot parse g\.onnx"):
        build(trt, tmp_path / "g.onnx", tmp_path / "plan", precision="float32")


def test_an_input_of_unknown_meaning_is_named(trt, tmp_path):
    def to_plan(graph: Path, plan: Path, limits: Limits) -> dict[str, str]:
        build(trt, graph, plan, precision="float32", limits=limits, num_hidden_layers=1)
        return {}

    with pytest.raises(EngineError, match="prompt_tasks is of unknown meaning"):
        zoo.write_engine("unknown-tensor", tmp_path, to_plan=to_plan)


def test_the_timing_cache_is_of_one_version_and_gpu(tmp_path):
    path = timing_cache_path(tmp_path, types.SimpleNamespace(__version__="8.6.1"), "NVIDIA H200 NVL/2")
    assert path == tmp_path / ".timing-8.6.1-NVIDIA-H200-NVL-2.cache"


def test_the_oldest_version_has_no_bfloat16():
    oldest = types.SimpleNamespace(__version__="8.6.1", DataType=types.SimpleNamespace(FLOAT=0, HALF=1))
    with pytest.raises(EngineError, match=r"TensorRT 8\.6\.1 builds float32, float16; use one of them"):
        tensorrt_versions.require_precision(oldest, "bfloat16")


class Weak:
    """A layer as TensorRT 8.6's network shows it, around a real one: every floating tensor inside is FLOAT, and what
    the layer is held to is noted."""

    def __init__(self, trt: Any, layer: Any) -> None:
        self._trt, self._layer = trt, layer
        self.held_to: set[Any] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def get_output(self, index: int) -> Any:
        return self._weak(self._layer.get_output(index))

    def get_input(self, index: int) -> Any:
        return self._weak(self._layer.get_input(index))

    def _weak(self, tensor: Any) -> Any:
        kinds = self._trt.DataType
        if tensor is None:
            return None
        floating = tensor.dtype in (kinds.HALF, kinds.BF16) and not tensor.is_network_output
        return types.SimpleNamespace(name=tensor.name, dtype=kinds.FLOAT if floating else tensor.dtype)

    @property
    def precision(self) -> Any:
        raise AssertionError("never read")

    @precision.setter
    def precision(self, dtype: Any) -> None:
        self.held_to.add(dtype)

    def set_output_type(self, index: int, dtype: Any) -> None:
        self.held_to.add(dtype)


def test_in_a_weakly_typed_network_what_the_graph_computes_in_float32_is_held_to_it_and_nothing_else(trt, graph):
    """As for 8.6, whose builder needs a GPU: real layers, with the setters that strongly typed networks lack."""
    path, precision = graph
    native_log, _ = tensorrt_versions.open_log(trt)
    builder = trt.Builder(native_log)
    network = builder.create_network(tensorrt_versions.network_flags(trt))
    assert trt.OnnxParser(network, native_log).parse_from_file(str(path))
    layers = [Weak(trt, network.get_layer(i)) for i in range(network.num_layers)]
    weakly = types.SimpleNamespace(
        BuilderFlag=types.SimpleNamespace(TF32="tf32", FP16="fp16", OBEY_PRECISION_CONSTRAINTS="obey"),
        NetworkDefinitionCreationFlag=types.SimpleNamespace(EXPLICIT_BATCH=0),
        LayerType=trt.LayerType,
        DataType=trt.DataType,
    )
    flags: set[str] = {"tf32"}
    config = types.SimpleNamespace(set_flag=flags.add, clear_flag=flags.discard)
    tensorrt_versions.set_precision(
        weakly,
        config,
        types.SimpleNamespace(num_layers=len(layers), get_layer=layers.__getitem__),
        precision=precision,
        float32_tensors=float32_tensors(path),
    )
    held = {layer.name for layer in layers if layer.held_to == {trt.DataType.FLOAT}}
    if precision == "float32":
        assert (held, flags) == (set(), set())
        return
    assert flags == {"tf32", "fp16", "obey"}
    strongly = [network.get_layer(i) for i in range(network.num_layers)]
    computing = {
        layer.name
        for layer in strongly
        if layer.type not in (trt.LayerType.CONSTANT, trt.LayerType.CAST)
        and all(layer.get_output(i).dtype == trt.DataType.FLOAT for i in range(layer.num_outputs))
    }
    assert held == computing
    assert {"layers.0.attention_norm/square", "layers.1.attention/masked", "final_norm/divided"} <= held
    assert trt.LayerType.SOFTMAX in {layer.type for layer in strongly if layer.name in held}
    assert trt.LayerType.MATRIX_MULTIPLY not in {layer.type for layer in strongly if layer.name in held}
