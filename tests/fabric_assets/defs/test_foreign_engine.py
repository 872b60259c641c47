"""A TensorRT-LLM engine through the whole project, on stand-ins for TensorRT and CUDA that run its real graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from io_managers import layout
from io_managers.reading import read_engine, read_hidden_states
from tests import zoo
from tests.engine.stand_in import StandIn, write_plan
from tests.fabric_assets.conftest import Fabric


def test_its_vectors_are_stored_with_their_lineage(fabric: Fabric, tmp_path: Path, monkeypatch) -> None:
    StandIn().install(monkeypatch)
    zoo.write_foreign_engine(tmp_path / "theirs", to_plan=write_plan)
    for path in (tmp_path / "theirs").glob("tokenizer*"):
        path.unlink()
    [part] = fabric.register(["one", "the other", "one"], format="text")
    result = fabric.extract(part, ops={"engine": {"config": {"directory": str(tmp_path / "theirs")}}})
    assert result.success
    ids, vectors = read_hidden_states(part)
    engine = read_engine(layout.lake_path())
    assert (engine.backend, engine.graph_version) == ("tensorrt", "foreign")
    assert set(ids["engine_id"]) == {engine.engine_id}
    first, other, again = (vectors[ids["probe_id"].to_list().index(f"set.txt:{row}")] for row in range(3))
    np.testing.assert_array_equal(again, first)
    assert np.isfinite(vectors).all()
    assert not np.allclose(other, first)
