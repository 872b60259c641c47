from dataclasses import replace

import numpy as np
import pytest

from resources.engine.backend import Engine, open_backend
from resources.engine.bindings import classify
from resources.engine.config import read_engine_config
from resources.engine.onnxruntime_backend import OnnxRuntimeBackend
from resources.errors import EngineError
from tests import zoo
from tests.engine.batches import INPUTS, TENSORS, batch


class Recording:
    """A real backend whose calls are written down."""

    def __init__(self, backend: OnnxRuntimeBackend, *, fails: str = "") -> None:
        self._backend, self._fails = backend, fails
        self.calls: list[str] = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(" ".join([name, *(a for a in arguments if isinstance(a, str))]))
            if name == self._fails:
                raise EngineError(f"{name} failed")
            return getattr(self._backend, name)(*arguments)

        return call


@pytest.fixture
def directory(tmp_path):
    zoo.write_engine("exclusive-end", tmp_path)
    return tmp_path


def opened(directory, **how) -> tuple[Engine, Recording]:
    config = read_engine_config(directory)
    recording = Recording(open_backend(directory, config, threads=1), **how)
    engine = Engine(recording, classify(recording.tensors(), config), config)
    recording.calls.clear()
    return engine, recording


def test_every_batch_makes_every_call_in_the_one_right_order(directory):
    engine, recording = opened(directory)
    for lengths in [(3, 1), (2, 9, 4), (1,)]:
        recording.calls.clear()
        engine.run(batch(*lengths))
        assert [c for c in recording.calls if not c.startswith("host ")] == [
            "use_profile",
            *(f"set_shape {t}" for t in TENSORS),
            *(f"bind {t}" for t in TENSORS),
            *(f"copy_in {t}" for t in INPUTS),
            "execute",
            "copy_out hidden_states",
            "wait",
        ]
        filled = [recording.calls.index(f"host {t}") for t in INPUTS]
        assert max(filled) < recording.calls.index("copy_in input_ids")


def test_a_batch_that_was_started_is_collected_once_and_before_the_next(directory):
    engine, recording = opened(directory)
    first = engine.submit(batch(3, 1))
    assert "wait" not in recording.calls
    expected = engine.run(batch(3, 1))
    with pytest.raises(EngineError, match="another one was started since"):
        first()
    second = engine.submit(batch(3, 1))
    np.testing.assert_array_equal(second(), expected)
    with pytest.raises(EngineError, match="collected already"):
        second()


def test_the_host_arrays_are_not_refilled_while_a_batch_may_still_read_them(directory):
    engine, recording = opened(directory)
    engine.submit(batch(3, 1))
    recording.calls.clear()
    engine.submit(batch(2, 2))
    assert recording.calls[:2] == ["wait", "use_profile"]


def test_a_result_survives_the_next_batch(directory):
    engine, _ = opened(directory)
    first = engine.run(batch(3, 1))
    kept = first.copy()
    engine.run(batch(5, 5, 5))
    np.testing.assert_array_equal(first, kept)


def test_an_earlier_larger_batch_leaves_no_trace(directory):
    engine, _ = opened(directory)
    before = engine.run(batch(2, 2))
    engine.run(batch(*[5] * 12))
    np.testing.assert_array_equal(engine.run(batch(2, 2)), before)


@pytest.mark.parametrize("lengths", [(1,) * 13, (24, 24, 17), (25,)], ids=["sequences", "tokens", "length"])
def test_a_batch_beyond_any_limit_is_refused_before_a_call(directory, lengths):
    engine, recording = opened(directory)
    with pytest.raises(EngineError, match="beyond the engine's limits"):
        engine.run(batch(*lengths))
    assert recording.calls == []


@pytest.mark.parametrize("fails", ["allocate", "profiles"])
def test_a_failure_while_opening_closes_the_backend(directory, fails):
    config = read_engine_config(directory)
    recording = Recording(open_backend(directory, config, threads=1), fails=fails)
    with pytest.raises(EngineError, match=fails):
        Engine(recording, classify(recording.tensors(), config), config)
    assert recording.calls[-1] == "close"


def test_a_closed_engine_says_so_and_closes_once(directory):
    engine, recording = opened(directory)
    engine.close()
    engine.close()
    assert recording.calls == ["close"]
    with pytest.raises(EngineError, match="closed"):
        engine.run(batch(1))


def test_a_backend_that_is_not_there_is_named(directory):
    with pytest.raises(EngineError, match="'tpu'"):
        open_backend(directory, replace(read_engine_config(directory), backend="tpu"))
