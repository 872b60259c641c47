"""Plans on the GPU: built, proved, right; and the zoo, whose wrong engines are refused here as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from resources import proof
from resources.errors import EngineError, EngineRefused
from resources.packing import plan
from tests import zoo
from tests.gpu.conftest import LIMITS

RIGHT = [name for name, kind in zoo.KINDS.items() if "proved" in kind.reasons]
WRONG = [name for name in zoo.KINDS if name not in RIGHT]
LEAST_COSINE = {"float16": 0.9995, "float32": 0.999999}


def vectors(engine: proof.ProvenEngine, sequences: list[np.ndarray]) -> np.ndarray:
    batches = plan((len(s) for s in sequences), LIMITS)
    return np.concatenate([engine.extract([sequences[i] for i in batch]) for batch in batches]).astype(np.float32)


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_a_checkpoints_plan_is_proved_under_every_profile(engines, precision):
    with proof.load(engines[precision]) as engine:
        report = engine.report
    assert (report.convention, report.decided_by) == ("exclusive_end", "only-consistent")
    shown = {(d.profile, d.shape) for d in report.dependence}
    assert shown >= {(p, shape) for p in (0, 1) for shape in ("micro", "crowded", "full", "long")}


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_vectors_are_those_of_onnx_runtime_in_float32(engines, reference, precision):
    random = np.random.default_rng(0)
    lengths = sorted(random.integers(1, LIMITS.max_input_len + 1, 200).tolist())
    sequences = [random.integers(3, 270, n, dtype=np.int32) for n in lengths]
    with proof.load(engines[precision]) as engine, proof.load(reference) as right:
        seen, expected = vectors(engine, sequences), vectors(right, sequences)
    cosines = (seen * expected).sum(1) / np.linalg.norm(seen, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() >= LEAST_COSINE[precision]


@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("kind", RIGHT)
def test_no_right_engine_is_refused(tmp_path, to_plan, kind, precision):
    zoo.write_engine(kind, tmp_path, precision=precision, to_plan=to_plan(precision))
    with proof.load(tmp_path) as engine:
        assert engine.convention is zoo.KINDS[kind].convention


@pytest.mark.parametrize("kind", WRONG)
def test_no_wrong_engine_is_accepted(tmp_path, to_plan, kind):
    try:
        zoo.write_engine(kind, tmp_path, to_plan=to_plan("float32"))
    except EngineError as error:
        pytest.skip(f"TensorRT builds no plan of it: {error}")
    with pytest.raises(EngineRefused) as caught:
        proof.load(tmp_path)
    assert caught.value.report.reason in zoo.KINDS[kind].reasons


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_an_engine_that_this_project_did_not_build_is_bound_and_proved(tmp_path, to_plan, precision):
    zoo.write_foreign_engine(tmp_path / "theirs", precision=precision, to_plan=to_plan(precision))
    zoo.write_engine("exclusive-end", tmp_path / "ours")
    sequences = [np.arange(5, 5 + n) for n in (1, 9, 2, 24)]
    with proof.load(tmp_path / "theirs") as engine, proof.load(tmp_path / "ours") as ours:
        assert engine.convention.value == "exclusive_end"
        tolerance = {"float16": 0.02, "float32": 1e-4}[precision]
        np.testing.assert_allclose(
            engine.extract(sequences).astype(np.float32), ours.extract(sequences), rtol=tolerance, atol=tolerance
        )
