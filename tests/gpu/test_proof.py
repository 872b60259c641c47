"""Plans on the GPU: built, proved and right."""

from __future__ import annotations

import numpy as np
import pytest

from resources import proof
from resources.packing import plan
from tests import zoo
from tests.gpu.conftest import LIMITS

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
