from dataclasses import replace

import dagster as dg
import numpy as np
import pytest

from resources import extraction_engine
from resources.attestation import attest
from resources.checkpoint import load_tokenizer
from resources.errors import ConfigurationError, EngineError
from resources.extraction_engine import ExtractionEngine, report_metadata
from resources.proof import load
from tests import zoo


@pytest.fixture(autouse=True)
def nothing_opened():
    yield
    extraction_engine._held.clear()
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
    shown = list(caught.value.metadata)
    assert shown[:5] == ["verdict", "sentence", "convention", "decided_by", "reason"]
    assert {"plots", "steps", "conventions", "dependence: Every shape", "bindings", "evidence"} <= set(shown)


def test_a_process_says_who_it_is_with_which_engine_since_when(tmp_path):
    record, resource = zoo.write_engine("exclusive-end", tmp_path / "engine"), ExtractionEngine(threads=1)
    opened = resource.open(record, tmp_path)
    said = resource.attestation(opened)
    assert (said.engine_id, said.model_key, said.contract) == (record.engine_id, record.model_key, "")
    assert said == resource.attestation(resource.open(record, tmp_path))
    assert replace(said, worker="another").attestation_id != said.attestation_id
    resource.report(record, tmp_path)
    assert resource.attestation(resource.open(record, tmp_path)).validated_at > said.validated_at


def test_a_worker_gives_the_engine_it_holds_and_opens_and_validates_no_other(tmp_path):
    mine, other = (zoo.write_engine("exclusive-end", tmp_path / str(seed), seed) for seed in (0, 1))
    resource = ExtractionEngine(threads=1)
    held = load(tmp_path / "0", threads=1)
    assert resource.held_tokenizer(mine.engine_id) is None
    tokenizer = load_tokenizer(tmp_path / "0")
    extraction_engine.hold(held, attest(held, worker="w", contract="c"), tokenizer)
    assert resource.held_tokenizer(mine.engine_id) is tokenizer
    assert resource.open(replace(mine, directory="elsewhere"), tmp_path) is held
    assert resource.attestation(held).contract == "c"
    for ask in (resource.open, resource.report):
        with pytest.raises(dg.Failure, match=f"worker .*{mine.engine_id}") as caught:
            ask(other, tmp_path)
        assert not caught.value.allow_retries
    assert resource.open(mine, tmp_path) is held


@pytest.mark.parametrize("given", ["abc", "0", "-2", "1.5"])
def test_a_number_of_threads_that_is_none_is_named(tmp_path, monkeypatch, given):
    record = zoo.write_engine("exclusive-end", tmp_path / "engine")
    monkeypatch.setenv("FABRIC_THREADS", given)
    with pytest.raises(ConfigurationError, match=f"FABRIC_THREADS is '{given}'; expected a whole number"):
        ExtractionEngine().open(record, tmp_path)
    assert ExtractionEngine(threads=1).open(record, tmp_path).report.verdict == "proved"
