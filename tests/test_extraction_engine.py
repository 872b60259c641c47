from dataclasses import replace

import dagster as dg
import numpy as np
import pytest

from resources import extraction_engine
from resources.errors import ConfigurationError, EngineError
from resources.extraction_engine import ExtractionEngine, report_metadata
from tests import zoo


@pytest.fixture(autouse=True)
def nothing_opened():
    yield
    while extraction_engine._opened:
        extraction_engine._opened.popitem()[1].close()


def test_an_engine_is_opened_once_and_validated_anew_when_asked(tmp_path):
    record, resource = zoo.write_engine("exclusive-end", tmp_path / "engine"), ExtractionEngine(threads=1)
    opened = resource.open(record, tmp_path)
    assert resource.open(record, tmp_path) is opened
    assert resource.report(record, tmp_path).verdict == "proved"
    with pytest.raises(EngineError, match="closed"):
        opened.extract([np.array([5])])
    (tmp_path / "engine" / zoo.GRAPH_FILE).write_bytes(b"")
    assert resource.report(record, tmp_path).reason == "changed-files"


def test_a_folder_with_another_engine_than_the_record_says_is_not_opened(tmp_path):
    record = zoo.write_engine("exclusive-end", tmp_path / "engine")
    other = replace(record, engine_id="0" * 32)
    for ask in (ExtractionEngine(threads=1).open, ExtractionEngine(threads=1).report):
        with pytest.raises(EngineError, match=f"holds engine {record.engine_id}; expected {other.engine_id}"):
            ask(other, tmp_path)


def test_a_refusal_is_a_failure_that_is_not_retried_and_carries_what_a_report_shows(tmp_path):
    record, resource = zoo.write_engine("bidirectional", tmp_path / "engine"), ExtractionEngine(threads=1)
    with pytest.raises(dg.Failure) as caught:
        resource.open(record, tmp_path)
    assert not caught.value.allow_retries
    assert caught.value.metadata == report_metadata(resource.report(record, tmp_path))
    assert list(caught.value.metadata) == ["verdict", "sentence", "convention", "decided_by", "reason", "evidence"]


@pytest.mark.parametrize("given", ["abc", "0", "-2", "1.5"])
def test_a_number_of_threads_that_is_none_is_named(tmp_path, monkeypatch, given):
    record = zoo.write_engine("exclusive-end", tmp_path / "engine")
    monkeypatch.setenv("FABRIC_THREADS", given)
    with pytest.raises(ConfigurationError, match=f"FABRIC_THREADS is '{given}'; expected a whole number"):
        ExtractionEngine().open(record, tmp_path)
    assert ExtractionEngine(threads=1).open(record, tmp_path).report.verdict == "proved"
