"""The zoo on the GPU: what is refused on the CPU is refused here, and nothing else."""

from __future__ import annotations

import pytest

from resources import proof
from resources.errors import EngineError, EngineRefused
from tests import zoo

RIGHT = [name for name, kind in zoo.KINDS.items() if "proved" in kind.reasons]
WRONG = [name for name in zoo.KINDS if name not in RIGHT]


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
