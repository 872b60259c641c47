"""The validation report: in the UI with its tables and plots, and as a page that stands by itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.ui.home import Home
from tests.ui.page import Page

pytestmark = [pytest.mark.ui, pytest.mark.usefixtures("scheduled")]

ON_BOTH = (
    "last_token_ids is the exclusive end",
    "only-consistent",
    "dependence, up to every limit",
    "the vector is read here",
    "key-value cache",
    "fingerprints",
    "B's last token",
    "padded_index",
)


def test_the_report_shows_verdict_tables_and_plots(page: Page, home: Home) -> None:
    page.open("/assets/engine_validation_report?view=events", width=1800, height=1500)
    page.shows("verdict proved", *ON_BOTH, f"page {home.folder / 'home' / 'reports'}")
    page.screenshot("report")
    page.click("[Show Markdown]")
    page.shows("The gather convention", "Proof by dependence", "The same vector in any pack")
    pictures = page.pictures()
    assert len(pictures) >= 3
    assert all(p.get_property("naturalWidth") >= 400 for p in pictures)
    page.screenshot("report_plots")


def test_the_mailed_page_needs_nothing_beside_itself(page: Page, home: Home, tmp_path: Path) -> None:
    [proved] = [p for p in (home.folder / "home" / "reports").iterdir() if "is the exclusive end" in p.read_text()]
    mailed = shutil.copy(proved, tmp_path / "report.html")
    page.open(Path(mailed).as_uri(), width=1100, height=1400)
    page.shows(*ON_BOTH)
    page.screenshot("report_page")
    plots = page.browser.find_elements("css selector", "svg")
    assert len(plots) >= 3
    assert all(p.size["width"] >= 200 and p.size["height"] >= 50 for p in plots)
    fetched = page.browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert fetched == []
