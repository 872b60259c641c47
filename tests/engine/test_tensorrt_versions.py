import sys
import types

import pytest

from resources.engine.tensorrt_versions import (
    TensorRtLog,
    activation_bytes,
    checked,
    dtype_name,
    import_tensorrt,
    network_flags,
    restrict_tactics,
)
from resources.errors import EngineError


def raising(error: Exception):
    def call(*arguments):
        raise error

    return call


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda log: False, r"^no plan \(TensorRT: bad tag\)$"),
        (lambda log: None, r"^no plan \(TensorRT: bad tag\)$"),
        (raising(RuntimeError("in use")), r"^no plan \(in use\)$"),
        (raising(TypeError("factory function returned nullptr")), r"^no plan \(factory function returned nullptr\)$"),
    ],
)
@pytest.mark.parametrize("what", ["no plan", lambda: "no plan"], ids=["words", "words when needed"])
def test_however_a_call_says_no_it_is_an_engine_error(call, says, what):
    log = TensorRtLog()
    log.errors.append("of an earlier call")

    def failing(log):
        log.errors.append("bad tag")
        return call(log)

    with pytest.raises(EngineError, match=says):
        checked(log, what, failing if "bad tag" in says else call, log)


@pytest.mark.parametrize("gives", [0, (), 7, True, []])
def test_what_a_call_gives_is_given_on(gives):
    assert checked(TensorRtLog(), "never said", lambda: gives) == gives


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({"EXPLICIT_BATCH": 0}, 1), ({"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1}, 3), ({"STRONGLY_TYPED": 0}, 1)],
    ids=["8.6", "9 and 10", "11"],
)
def test_a_network_is_of_explicit_batch_and_strong_types_where_there_are_such(flags, expected):
    assert network_flags(types.SimpleNamespace(NetworkDefinitionCreationFlag=members(flags))) == expected


@pytest.mark.parametrize(
    ("sources", "known", "mask"),
    [((), {"CUBLAS": 0, "CUDNN": 2}, 0), (("CUDNN",), {"CUBLAS": 0, "CUDNN": 2}, 4), ((), None, None)],
)
def test_only_the_libraries_named_may_give_kernels(sources, known, mask):
    given = []
    config = types.SimpleNamespace(set_tactic_sources=lambda bits: given.append(bits) or True)
    trt = types.SimpleNamespace(__version__="9", **({"TacticSource": members(known)} if known else {}))
    restrict_tactics(trt, config, sources)
    assert given == ([] if mask is None else [mask])


def test_tactic_sources_that_are_refused_are_named():
    trt = types.SimpleNamespace(__version__="9", TacticSource=members({"CUDNN": 2}))
    config = types.SimpleNamespace(set_tactic_sources=lambda bits: False)
    with pytest.raises(EngineError, match=r"refused the tactic sources \('CUDNN',\)"):
        restrict_tactics(trt, config, ("CUDNN",))


@pytest.mark.parametrize(("name", "expected"), [("HALF", "float16"), ("BF16", "bfloat16"), ("BOOL", "BOOL")])
def test_a_dtype_has_our_name_or_keeps_its_own(name, expected):
    assert dtype_name(types.SimpleNamespace(name=name)) == expected


def test_the_size_of_activations_is_read_where_the_version_has_it():
    assert activation_bytes(types.SimpleNamespace(device_memory_size=3)) == 3
    assert activation_bytes(types.SimpleNamespace(device_memory_size=3, device_memory_size_v2=5)) == 5


def test_a_version_before_the_tensor_calls_is_named(monkeypatch):
    old = types.ModuleType("tensorrt")
    old.__version__, old.IExecutionContext = "8.4", object()
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    with pytest.raises(EngineError, match=r"TensorRT is 8\.4; expected 8\.6 or newer"):
        import_tensorrt()


def members(values: dict[str, int]) -> type:
    return type("Enumeration", (), {"__members__": values, **values})
