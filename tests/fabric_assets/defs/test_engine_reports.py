"""What a person finds in the UI after a validation: metadata, page, history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from io_managers import layout
from io_managers.stored_rows import stored_records
from io_managers.tables import ENGINE_VALIDATION_REPORTS
from tests.fabric_assets.conftest import Fabric
from tests.tiny import tiny_gguf
from tests.zoo import write_engine

VALIDATION = ("engine", "engine_validation_report")


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    [event] = [
        e for e in result.get_asset_materialization_events() if e.asset_key == dg.AssetKey("engine_validation_report")
    ]
    return dict(event.materialization.metadata)


def column(metadata: dict[str, Any], table: str, name: str) -> list[Any]:
    return [record.data[name] for record in metadata[table].records]


def test_a_validation_shows_verdict_tables_plots_and_page(fabric: Fabric) -> None:
    result = fabric.run(*VALIDATION)
    assert result.success
    metadata = shown(result)
    assert (metadata["verdict"].value, metadata["convention"].value) == ("proved", "exclusive end")
    assert metadata["decided_by"].value.startswith("only-consistent")
    assert column(metadata, "steps", "came to").count("passed") == 13
    assert set(column(metadata, "contract", "holds")) == {"yes"}
    assert len(column(metadata, "contract", "clause")) == 13
    assert "first for both" in column(metadata, "head", "result")
    assert column(metadata, "samples", "gathered").count("◀ the vector is read here") == 3
    assert metadata["plots"].value.count("](data:image/svg+xml;base64,") >= 3
    page = Path(metadata["page"].value)
    assert "<h1>Proved</h1>" in page.read_text(encoding="utf-8")
    [check] = result.get_asset_check_evaluations()
    assert check.passed and check.metadata["page"].value == str(page)


@pytest.mark.parametrize("kind", ["bidirectional", "key-value-cache"])
def test_a_refusal_has_its_page_and_its_evidence_too(fabric: Fabric, tmp_path: Path, kind: str) -> None:
    write_engine(kind, tmp_path / "engine")
    metadata = shown(fabric.run(*VALIDATION, ops={"engine": {"config": {"directory": str(tmp_path / "engine")}}}))
    assert column(metadata, "steps", "came to").count("refused") == 1
    assert ("dependence: Every shape" in metadata) == (kind == "bidirectional")
    assert "contract" not in metadata
    assert "<h1>Refused</h1>" in Path(metadata["page"].value).read_text(encoding="utf-8")


def test_every_validation_is_kept_as_a_row_and_a_page(fabric: Fabric) -> None:
    for _ in range(2):
        assert fabric.run(*VALIDATION).success
    rows = list(stored_records(layout.lake_path(), ENGINE_VALIDATION_REPORTS, {}))
    assert len(rows) == 2
    assert all(layout.report_path(row["report_id"]).is_file() for row in rows)


def test_a_checkpoint_that_is_not_the_engines_is_not_compared_with_it(fabric: Fabric, tmp_path: Path) -> None:
    assert fabric.run(*VALIDATION).success
    other = {"checkpoint": str(tiny_gguf(tmp_path / "other.gguf", seed=7))}
    metadata = shown(fabric.run("engine_validation_report", model=other))
    assert metadata["verdict"].value == "proved"
    assert "head" not in metadata
    assert set(column(metadata, "contract", "holds")) == {"yes"}


def test_work_that_the_engine_was_not_built_for_fails_its_clauses_and_not_the_verdict(fabric: Fabric) -> None:
    assert fabric.run(*VALIDATION).success
    result = fabric.run("engine_validation_report", model={"max_batch_size": 13})
    metadata = shown(result)
    holds = dict(zip(column(metadata, "contract", "clause"), column(metadata, "contract", "holds"), strict=True))
    assert [clause for clause, held in holds.items() if held == "no"] == ["sequences in a batch"]
    assert result.success and metadata["verdict"].value == "proved"
