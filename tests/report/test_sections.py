from dataclasses import replace

import pytest

from resources.proof.validation import Clause
from resources.report import Mark, sections
from resources.report.overview import decided_by, facts
from tests import zoo
from tests.report.reports import report_of


def by_name(report):
    return {s.name: s for s in sections(report)}


def states(report):
    [table] = by_name(report)["steps"].tables
    return [cells[1].text for cells in table.rows]


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_every_step_of_every_engine_says_where_it_ended(kind):
    report = report_of(kind)
    ended = states(report)
    if report.verdict == "proved":
        assert set(ended) == {"passed", "not done"}
        return
    stopped = ended.index("refused")
    assert set(ended[:stopped]) <= {"passed", "not done"}
    assert set(ended[stopped + 1 :]) <= {"not reached"}
    [table] = by_name(report)["steps"].tables
    assert table.rows[stopped][2].text == report.sentence


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("key-value-cache", "one raw forward pass"),
        ("limits-too-small", "room for the micro-batch"),
        ("unknown-tensor", "every tensor understood"),
        ("all-zero", "convention found"),
        ("non-finite", "convention found"),
        ("ignores-input", "input read"),
        ("bidirectional", "dependence, small batch"),
        ("no-positions", "order of tokens read"),
        ("clipped-index", "dependence, up to every limit"),
    ],
)
def test_the_step_that_refused_is_the_one_that_is_marked(kind, step):
    [table] = by_name(report_of(kind))["steps"].tables
    assert [cells[0].text for cells in table.rows if cells[1].mark is Mark.BAD] == [step]


def test_an_engine_that_failed_half_way_stops_at_the_first_step_that_left_nothing():
    report = report_of("exclusive-end")
    failed = replace(
        report, verdict="refused", reason="failed-to-run", sentence="out of memory", convention=None, placement=None,
        dependence=report.dependence[:2], samples=None,
    )  # fmt: skip
    ended = states(failed)
    assert ended.index("refused") == 10
    assert ended.count("refused") == 1


def test_the_convention_shows_ids_fingerprints_separation_and_which_is_consistent():
    section = by_name(report_of("exclusive-end"))["conventions"]
    [exclusive, inclusive] = section.tables[0].rows
    assert (exclusive[1].text, exclusive[1].mark) == ("exclusive end", Mark.CHOSEN)
    assert [cells[2].text for cells in (exclusive, inclusive)] == ["1, 2, 4, 4", "1, 1, 3, 4"]
    assert [cells[-1].text for cells in (exclusive, inclusive)] == ["yes", "no"]
    [a, b] = exclusive[3].text.split(", ")[1:3]
    assert a != b
    assert len(set(inclusive[3].text.split(", ")[:3])) == 1


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("exclusive-end", "only-consistent: only one convention"),
        ("both-consistent-inclusive", "tie-break: both conventions looked right"),
        ("bidirectional", "the engine is refused for all that"),
        ("all-zero", "nothing"),
    ],
)
def test_how_the_convention_was_decided_stands_beside_the_verdict(kind, says):
    report = report_of(kind)
    assert says in decided_by(report)
    assert dict(facts(report))["decided by"] == decided_by(report)


def test_the_dependence_names_the_token_that_was_changed_and_what_moved():
    exchanges, shapes = by_name(report_of("exclusive-end"))["dependence"].tables
    [first] = [cells for cells in exchanges.rows if cells[0].text == "B's last token"][:1]
    assert "→" in first[1].text
    assert (first[2].text, first[3].text.split(", ")[1]) == ("0, must stay", "must move")
    assert {cells[-1].text for cells in shapes.rows} == {"holds"}


def test_a_vector_that_moved_and_must_not_is_shown():
    *_, wrong = by_name(report_of("bidirectional"))["dependence"].tables
    assert [c.text for c in wrong.rows[0]][1:4] == ["B's last token", "2", "stay"]


def test_each_sample_probe_marks_one_token_its_last():
    for table in by_name(report_of("exclusive-end"))["samples"].tables:
        assert [cells[3].text != "" for cells in table.rows] == [False] * (len(table.rows) - 1) + [True]
        assert [cells[0].text for cells in table.rows] == [str(i) for i in range(len(table.rows))]


def test_bindings_have_roles_places_shapes_and_bytes():
    [table] = by_name(report_of("tensorrt-llm-inputs"))["bindings"].tables
    rows = {cells[0].text: [c.text for c in cells[1:]] for cells in table.rows}
    assert rows["input_ids"] == ["packed", "device", "int32", "?", "64", "256"]
    assert rows["host_context_lengths"][:2] == ["per-sequence", "host"]
    assert rows["host_runtime_perf_knobs"] == ["static", "host", "int64", "16", "16", "128"]


def test_a_clause_that_fails_is_named_and_leaves_the_verdict_alone():
    report = report_of("exclusive-end")
    clauses = (Clause("dtype", True, "float32", "float32"), Clause("tokenizer", False, "one", "another"))
    section = by_name(replace(report, contract=clauses))["contract"]
    assert section.lead.startswith("tokenizer: not met")
    assert [cells[1].mark for cells in section.tables[0].rows] == [Mark.GOOD, Mark.BAD]
    assert "contract" not in by_name(report)


def test_vectors_that_differ_from_pack_to_pack_are_said_to():
    section = by_name(report_of("both-consistent-exclusive"))["packs"]
    assert "NOT kept" in section.lead
    assert Mark.BAD in {cells[-1].mark for cells in section.tables[0].rows}
    assert len(section.plots) == 2
    same = by_name(report_of("exclusive-end"))["packs"]
    assert "bit for bit" in same.lead and len(same.plots) == 1
