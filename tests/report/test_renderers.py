"""The same sections, as lines and as a page."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from resources.report import lines, page, sections
from tests import zoo
from tests.report.reports import report_of

WHEN = datetime(2026, 11, 30, 5, 20, tzinfo=UTC)
VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Refuses a page whose elements do not nest; collects text, elements and what they refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.elements, self.references, self._open = "", set(), [], []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.references += [v for k, v in attrs if k in ("src", "href", "data", "xlink:href")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.add(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_a_page_holds_everything_and_refers_to_nothing_outside(kind):
    report = report_of(kind)
    text = page(report, validated_at=WHEN)
    seen = Page(text)
    assert seen.elements.isdisjoint({"script", "link", "img", "iframe", "object", "form"})
    assert all(r.startswith("#") for r in seen.references)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    assert report.sentence in seen.text and "30 November 2026, 05:20 UTC" in seen.text
    for section in sections(report):
        assert section.title in seen.text and section.lead in seen.text
        for cell in (c for table in section.tables for cells in table.rows for c in cells):
            assert cell.text in seen.text


@pytest.mark.parametrize("kind", ["exclusive-end", "both-consistent-exclusive", "bidirectional"])
def test_plots_are_well_formed_and_can_stand_alone(kind):
    plots = [plot for section in sections(report_of(kind)) for plot in section.plots]
    assert plots
    for plot in plots:
        root = ElementTree.fromstring(plot.svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("aria-label")
        assert "nan" not in plot.svg.lower() and "inf" not in re.sub(r"aria-label=\"[^\"]*\"", "", plot.svg)


def test_what_an_engine_says_of_itself_is_text_and_no_markup():
    report = replace(report_of("exclusive-end"), sentence="<script>alert('1')</script> & more", backend="<b>")
    text = page(report, validated_at=WHEN)
    assert "script" not in Page(text).elements
    assert "&lt;script&gt;" in text


def test_a_page_reads_on_dark_and_light_screens_and_on_paper():
    text = page(report_of("exclusive-end"), validated_at=WHEN)
    assert "prefers-color-scheme: dark" in text and "@media print" in text
    light, dark = (set(re.findall(r"--([a-z-]+):#", block)) for block in re.findall(r":root \{(.*?)\}", text, re.S)[:2])
    assert light == dark
    assert set(re.findall(r"var\(--([a-z-]+)", text)) <= light


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_the_terminal_shows_the_verdict_first_and_every_cell(kind):
    report = report_of(kind)
    shown = list(lines(report))
    assert shown[0] == f"{report.verdict}: {report.sentence}"
    whole = "\n".join(shown)
    assert "\n" not in "".join(shown)
    for section in sections(report):
        assert section.title.upper() in whole
        assert all(c.text in whole for table in section.tables for cells in table.rows for c in cells)


def test_the_gathered_token_is_marked_in_the_terminal():
    marked = [line for line in lines(report_of("exclusive-end")) if "◀ the vector is read here" in line]
    assert [line.split()[0] for line in marked] == ["15", "15", "15"]
