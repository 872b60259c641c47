"""Every runtime call that the backend makes is in TensorRT 11, with that signature: the lean runtime needs no GPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from resources import proof
from resources.engine.tensorrt_versions import _DTYPES, open_log
from tests.engine.stand_in import StandIn, write_two_profiles

TYPES = {
    "str": (str,),
    "int": (int,),
    "SupportsInt": (int,),
    "tuple": (tuple,),
    "Dims": (tuple,),
    "Buffer": (bytes,),
    "buffer": (bytes,),
}
"""What a signature asks for -> what may be given."""


@pytest.fixture(scope="module")
def trt() -> Any:
    return pytest.importorskip("tensorrt_lean_bindings", reason="install the extra `tensorrt-tests`")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, tuple[type, ...]]:
    """Every TensorRT call of a load, its proof and a batch under another profile: its arguments' types."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        stand_in = StandIn().install(monkeypatch)
        directory = write_two_profiles(tmp_path_factory.mktemp("engine"))
        with proof.load(directory) as engine:
            engine.extract([np.arange(5, 205)])
        return {
            name: tuple(type(a) for a in arguments) for name, arguments in stand_in.calls if not name.startswith("cuda")
        }


def accepts(signature: str, arguments: tuple[type, ...]) -> bool:
    """Whether a line as pybind writes it, `name(self: X, a: str, b: typing.SupportsInt = 0) -> bool`, takes these."""
    inside = re.search(r"\((.*)\) ->", signature)
    parameters = [p for p in (inside.group(1).split(", ") if inside else []) if not p.startswith("self:")]
    required = [p for p in parameters if " = " not in p]
    if not len(required) <= len(arguments) <= len(parameters):
        return False
    wanted = [p.split(": ", 1)[1].split(" = ")[0].rsplit(".", 1)[-1] for p in parameters]
    return all(given in TYPES.get(kind, ()) for kind, given in zip(wanted, arguments, strict=False))


def test_every_call_is_there_with_that_signature(trt, made):
    assert len(made) >= 12
    for name, arguments in made.items():
        kind, method = name.split(".")
        said = getattr(getattr(trt, kind), method).__doc__
        signatures = [line for line in said.splitlines() if f"{method}(self" in line]
        assert any(accepts(s, arguments) for s in signatures), (name, arguments, signatures)


@pytest.mark.parametrize(
    ("method", "gives"),
    [
        ("IExecutionContext.set_input_shape", "bool"),
        ("IExecutionContext.set_tensor_address", "bool"),
        ("IExecutionContext.execute_async_v3", "bool"),
        ("IExecutionContext.set_optimization_profile_async", "bool"),
        ("IExecutionContext.get_tensor_shape", "Dims"),
        ("ICudaEngine.get_tensor_name", "str"),
        ("ICudaEngine.get_tensor_mode", "TensorIOMode"),
        ("ICudaEngine.get_tensor_location", "TensorLocation"),
        ("ICudaEngine.get_tensor_dtype", "DataType"),
        ("ICudaEngine.get_tensor_shape", "Dims"),
        ("ICudaEngine.get_tensor_profile_shape", "list[Dims]"),
        ("ICudaEngine.create_execution_context", "IExecutionContext"),
        ("Runtime.deserialize_cuda_engine", "ICudaEngine"),
    ],
)
def test_every_call_gives_what_the_backend_reads(trt, made, method, gives):
    kind, name = method.split(".")
    assert method in made
    said = re.sub(r"\w+\.", "", getattr(getattr(trt, kind), name).__doc__)
    assert set(re.findall(rf"{name}\(self.*-> (\S+)", said)) == {gives}


@pytest.mark.parametrize(
    "attribute",
    [
        "ICudaEngine.num_io_tensors",
        "ICudaEngine.num_optimization_profiles",
        "ICudaEngine.device_memory_size_v2",
        "TensorIOMode.INPUT",
        "TensorLocation.HOST",
        "ILogger.Severity.INTERNAL_ERROR",
        "ILogger.Severity.ERROR",
        "ILogger.Severity.WARNING",
        *(f"DataType.{name}" for name in _DTYPES),
    ],
)
def test_what_is_read_without_a_call_is_there(trt, attribute):
    found = trt
    for name in attribute.split("."):
        found = getattr(found, name)


def test_its_logger_takes_ours(trt):
    native_log, log = open_log(trt)
    native_log.log(trt.ILogger.Severity.ERROR, "no device")
    native_log.log(trt.ILogger.Severity.WARNING, "slow")
    assert log.said() == " (TensorRT: no device)"
    assert isinstance(native_log, trt.ILogger)
