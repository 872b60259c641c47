"""The TensorRT backend against stand-ins for TensorRT and CUDA: calls, order, failures. `tests/gpu` uses the real."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from resources import proof
from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.engine.backend import Engine, choose_backend, open_backend
from resources.engine.bindings import classify
from resources.engine.build import build_engine
from resources.engine.config import FOREIGN_PLAN, read_engine_config
from resources.engine.cuda_memory import COUNTS
from resources.errors import EngineError, EngineRefused
from resources.records import Limits
from tests import zoo
from tests.engine import stand_in as fake
from tests.engine.batches import INPUTS, TENSORS, batch
from tests.engine.stand_in import NOTHING, StandIn
from tests.tiny import tiny_gguf


@pytest.fixture
def stand_in(monkeypatch):
    yield (made := StandIn().install(monkeypatch))
    assert made.memory == {}
    assert not any(made.alive.values())
    assert COUNTS.live == 0


def plan_of(graph: Path, plan: Path, limits: Limits) -> dict[str, str]:
    fake.write_plan(graph, plan, limits)
    return fake.VERSIONS


def zoo_engine(directory: Path, kind: str = "exclusive-end", **how) -> Path:
    zoo.write_engine(kind, directory, to_plan=plan_of, **how)
    return directory


@pytest.fixture(scope="module")
def two_profiles(tmp_path_factory) -> Path:
    return fake.write_two_profiles(tmp_path_factory.mktemp("two-profiles"))


def opened(directory: Path) -> Engine:
    config = read_engine_config(directory)
    backend = open_backend(directory, config)
    return Engine(backend, classify(backend.tensors(), config), config)


@pytest.mark.parametrize("kind", ["exclusive-end", "inclusive-end"])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_plan_is_proved_and_gives_the_vectors_that_onnx_runtime_gives(tmp_path, stand_in, kind, precision):
    zoo_engine(tmp_path / "plan", kind, precision=precision)
    zoo.write_engine(kind, tmp_path / "graph", precision=precision)
    sequences = [np.arange(5, 5 + n) for n in (1, 9, 2, 24)]
    with proof.load(tmp_path / "plan") as engine, proof.load(tmp_path / "graph", threads=1) as expected:
        assert engine.convention is zoo.KINDS[kind].convention
        assert engine.report.backend == "tensorrt"
        np.testing.assert_array_equal(engine.extract(sequences), expected.extract(sequences))


def test_every_profile_is_proved_up_to_its_own_limits(two_profiles, stand_in):
    with proof.load(two_profiles) as engine:
        large = [d for d in engine.report.dependence if d.shape in ("crowded", "full", "long")]
    assert {(d.profile, d.shape) for d in large} == {(p, s) for p in (0, 1) for s in ("crowded", "full", "long")}
    assert {p: max(d.longest for d in large if d.profile == p) for p in (0, 1)} == {0: 128, 1: 300}
    assert {p: max(d.n_sequences for d in large if d.profile == p) for p in (0, 1)} == {0: 16, 1: 6}


def test_every_batch_makes_every_call_in_the_one_right_order(tmp_path, stand_in):
    engine = opened(zoo_engine(tmp_path))
    for lengths in [(3, 1), (2, 9, 4), (1,)]:
        stand_in.calls.clear()
        engine.run(batch(*lengths))
        assert stand_in.names("IExecutionContext", "cudaMemcpy", "cudaStream") == [
            *(f"IExecutionContext.set_input_shape {t}" for t in INPUTS),
            "IExecutionContext.get_tensor_shape hidden_states",
            *(f"IExecutionContext.set_tensor_address {t}" for t in TENSORS),
            *["cudaMemcpyAsync"] * len(INPUTS),
            "IExecutionContext.execute_async_v3",
            "cudaMemcpyAsync",
            "cudaStreamSynchronize",
        ]
        tokens = sum(lengths)
        copied = [a[2] for name, a in stand_in.calls if name == "cudaMemcpyAsync"]
        padded = 8 * -(-max(lengths) // 8)
        assert copied[:5] == [4 * n for n in (tokens, tokens, len(lengths), len(lengths) * padded, tokens)]
        assert copied[5] == 4 * len(lengths) * zoo.HIDDEN
    engine.close()


def test_nothing_is_allocated_after_opening(two_profiles, stand_in):
    engine = opened(two_profiles)
    before = COUNTS.allocating_calls
    for lengths in [(3, 1), (200, 9), (1,), (300,), (128,) * 4]:
        engine.run(batch(*lengths))
    assert COUNTS.allocating_calls == before
    assert COUNTS.live == len(stand_in.memory) == 2 * len(TENSORS)
    engine.close()


def test_a_profile_is_changed_only_when_a_batch_needs_another(two_profiles, stand_in):
    engine = opened(two_profiles)
    stand_in.calls.clear()
    for lengths in [(3, 1), (128, 2), (129,), (300, 1), (4,)]:
        engine.run(batch(*lengths))
    changes = [a[0] for name, a in stand_in.calls if name == "IExecutionContext.set_optimization_profile_async"]
    assert changes == [1, 0]
    engine.close()


def test_an_engine_runs_on_another_thread_than_the_one_that_opened_it(tmp_path, stand_in):
    engine = opened(zoo_engine(tmp_path))
    expected = engine.run(batch(3, 1))
    stand_in.calls.clear()
    results = []
    thread = threading.Thread(target=lambda: results.append(engine.run(batch(3, 1))))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(results[0], expected)
    assert stand_in.names()[0] == "cudaSetDevice"
    engine.close()


@pytest.mark.parametrize(
    ("call", "gives", "says"),
    [
        ("cudaSetDevice", 100, "cudaSetDevice failed"),
        ("cudaStreamCreateWithFlags", 2, "cudaStreamCreateWithFlags failed"),
        ("Runtime.deserialize_cuda_engine", NOTHING, "is no plan that TensorRT 99.0 can open on Stand-in GPU"),
        ("cudaMallocHost", 2, r"no memory for tensor input_ids at its maximum shape, 256 bytes .*smaller limits"),
        (
            "cudaMalloc",
            2,
            r"no memory for tensor input_ids .*1,073,741,824 of the device's 2,147,483,648 bytes are free",
        ),
        ("ICudaEngine.create_execution_context", NOTHING, "activations take 1,048,576 bytes"),
    ],
)
def test_a_failure_while_opening_frees_everything_and_a_second_load_works(tmp_path, stand_in, call, gives, says):
    zoo_engine(tmp_path)
    stand_in.fail[call] = gives
    with pytest.raises(EngineError, match=says):
        proof.load(tmp_path)
    assert stand_in.memory == {}
    assert not any(stand_in.alive.values())
    stand_in.fail.clear()
    proof.load(tmp_path).close()


@pytest.mark.parametrize(
    ("call", "gives", "says"),
    [
        (
            "IExecutionContext.set_input_shape",
            False,
            r"refused \[2\] for the input input_ids; profile 0 takes \[1\] to",
        ),
        (
            "IExecutionContext.get_tensor_shape",
            [3, 16],
            r"makes hidden_states \[3, 16\] of this batch; expected \[2, 16\]",
        ),
        ("IExecutionContext.set_tensor_address", False, "refused the address of input_ids"),
        ("IExecutionContext.execute_async_v3", False, "could not run the batch"),
        ("cudaMemcpyAsync", 700, "cudaMemcpyAsync failed"),
        ("cudaStreamSynchronize", 700, "cudaStreamSynchronize failed"),
    ],
)
def test_a_failure_in_a_batch_refuses_the_engine_and_frees_everything(tmp_path, stand_in, call, gives, says):
    zoo_engine(tmp_path)
    stand_in.fail[call] = gives
    with pytest.raises(EngineRefused, match=rf"failed-to-run.*{says}"):
        proof.load(tmp_path)
    assert stand_in.memory == {}
    stand_in.fail.clear()
    proof.load(tmp_path).close()


def test_a_refused_profile_is_named(two_profiles, stand_in):
    engine = opened(two_profiles)
    stand_in.fail["IExecutionContext.set_optimization_profile_async"] = RuntimeError("in use")
    with pytest.raises(EngineError, match=r"refused profile 1 of 2.*in use"):
        engine.run(batch(200))
    stand_in.fail.clear()
    engine.run(batch(200))
    engine.close()


def test_a_plan_of_garbage_says_what_tensorrt_said(tmp_path, stand_in):
    directory = zoo_engine(tmp_path)
    (directory / FOREIGN_PLAN).write_bytes(b"garbage")
    with pytest.raises(EngineError, match=r"no plan.*magic tag does not match"):
        opened(directory)


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"tensorrt": "8.6.1"}, r"built by TensorRT 8\.6\.1 for Stand-in GPU .*this is TensorRT 99\.0"),
        (
            {"gpu": "L40S", "compute_capability": "8.9"},
            r"for L40S \(compute capability 8\.9\); this is TensorRT 99\.0 on",
        ),
    ],
)
def test_a_plan_for_another_version_or_gpu_is_refused_before_it_is_opened(tmp_path, stand_in, versions, says):
    def elsewhere(graph: Path, plan: Path, limits: Limits) -> dict[str, str]:
        return {**plan_of(graph, plan, limits), **versions}

    zoo.write_engine("exclusive-end", tmp_path, to_plan=elsewhere)
    with pytest.raises(EngineError, match=says):
        proof.load(tmp_path)
    assert "Runtime.deserialize_cuda_engine" not in stand_in.names()


@pytest.mark.parametrize(("missing", "says"), [("tensorrt", "TensorRT"), ("cuda.bindings", "cuda-python")])
def test_a_machine_without_the_libraries_says_what_to_install(tmp_path, stand_in, monkeypatch, missing, says):
    zoo_engine(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EngineError, match=f"{says} cannot be imported .*extra `gpu`"):
        proof.load(tmp_path)


def test_a_closed_engine_frees_everything_once(tmp_path, stand_in):
    engine = opened(zoo_engine(tmp_path))
    engine.close()
    engine.close()
    freed = stand_in.names("cudaFree")
    assert len(freed) == 2 * len(TENSORS)
    with pytest.raises(EngineError, match="closed"):
        engine.run(batch(1))


def test_a_machine_that_can_run_tensorrt_chooses_it(stand_in):
    assert choose_backend() == (
        "tensorrt",
        "tensorrt 99.0 on Stand-in GPU, rather than onnxruntime, which runs on the CPU only",
    )


def test_a_machine_without_a_device_chooses_onnx_runtime_and_says_why(stand_in):
    stand_in.fail["cudaGetDeviceProperties"] = 100
    backend, reason = choose_backend()
    assert backend == "onnxruntime"
    assert "tensorrt cannot be used here: cudaGetDeviceProperties failed" in reason


def test_building_for_tensorrt_without_it_says_what_to_install(tmp_path, stand_in, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf")))
    tokenizer = checkpoint.tokenizer(TokenizerPolicy())
    with pytest.raises(EngineError, match="or use the backend onnxruntime"):
        build_engine(checkpoint, tokenizer, tmp_path / "engines", backend="tensorrt", limits=Limits(8, 64, 32))
    assert not (tmp_path / "engines").exists()
