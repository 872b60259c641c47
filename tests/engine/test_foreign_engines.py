"""Engines that this project did not build: TensorRT-LLM's layout and names, on stand-ins for TensorRT and CUDA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from resources import proof
from resources.engine import bindings
from resources.errors import EngineError, EngineRefused
from resources.records import Limits
from tests import zoo
from tests.engine import stand_in as fake
from tests.engine.stand_in import StandIn

ON_HOST = tuple(name for name in zoo.TENSORRT_LLMS if name.startswith("host_"))


@pytest.fixture
def stand_in(monkeypatch):
    return StandIn().install(monkeypatch)


def write(directory: Path, *, on_host: tuple[str, ...] = ON_HOST) -> Path:
    def to_plan(graph: Path, plan: Path, limits: Limits) -> None:
        fake.write_plan(graph, plan, limits, on_host=on_host)

    zoo.write_foreign_engine(directory, to_plan=to_plan)
    return directory


@pytest.mark.parametrize("on_host", [ON_HOST, ()], ids=["declared on the host", "not declared, as TensorRT-LLM does"])
def test_its_tensors_are_classified_bound_and_filled(tmp_path, stand_in, on_host):
    zoo.write_engine("exclusive-end", tmp_path / "ours")
    sequences = [np.arange(5, 5 + n) for n in (1, 9, 2, 24)]
    with (
        proof.load(write(tmp_path / "theirs", on_host=on_host)) as engine,
        proof.load(tmp_path / "ours", threads=1) as ours,
    ):
        np.testing.assert_allclose(engine.extract(sequences), ours.extract(sequences), rtol=1e-5, atol=1e-5)
        assert engine.convention.value == "exclusive_end"
        assert engine.report.model_key != ours.report.model_key
        located = {b.name: b.location for b in engine.report.bindings}
    assert {name for name, location in located.items() if location == "host"} == set(ON_HOST)


def test_what_the_host_reads_never_gets_a_device_address_or_a_copy(tmp_path, stand_in):
    with proof.load(write(tmp_path)) as engine:
        allocated = stand_in.names("cudaMalloc")
        stand_in.calls.clear()
        engine.extract([np.array([5, 6])])
    tensors = [*zoo.TENSORRT_LLMS, "hidden_states"]
    assert allocated.count("cudaMallocHost") == len(tensors)
    assert allocated.count("cudaMalloc") == len(tensors) - len(ON_HOST)
    assert stand_in.names().count("cudaMemcpyAsync") == len(tensors) - len(ON_HOST)


@pytest.mark.parametrize("name", ["host_max_attention_window_sizes", "host_runtime_perf_knobs", "host_context_lengths"])
def test_wrong_metadata_would_change_the_vectors(tmp_path, stand_in, monkeypatch, name):
    with proof.load(write(tmp_path)) as engine:
        right = engine.extract([np.array([5, 6]), np.array([7])])
    known = bindings._INPUTS[name]
    wrong = bindings._Input(known.role, known.axes, known.values and (lambda b: b.context_lengths + 1), lambda c: 7)
    monkeypatch.setitem(bindings._INPUTS, name, wrong)
    with proof.load(tmp_path) as engine:
        assert np.abs(engine.extract([np.array([5, 6]), np.array([7])]) - right).max() > 0.1


def test_an_engine_with_a_key_value_cache_says_what_to_build(tmp_path, stand_in):
    config = write(tmp_path) / "config.json"
    config.write_text(config.read_text().replace("DISABLED", "PAGED"))
    with pytest.raises(EngineRefused, match="kv_cache_type disabled"):
        proof.load(tmp_path)
    assert stand_in.calls == []


def test_a_missing_plan_is_named(tmp_path, stand_in):
    (write(tmp_path) / "rank0.engine").unlink()
    with pytest.raises(EngineError, match=r"rank0\.engine cannot be read"):
        proof.load(tmp_path)
