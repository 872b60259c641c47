"""A schedule that a person turns on: its tick starts a backfill, which completes."""

from __future__ import annotations

import pytest

from tests.ui.conftest import SCHEDULE
from tests.ui.home import Home
from tests.ui.page import Page

pytestmark = [pytest.mark.ui, pytest.mark.usefixtures("scheduled")]

PATIENCE_S = 240.0


def test_a_tick_of_the_schedule_starts_a_backfill_that_completes(page: Page, home: Home) -> None:
    page.open(SCHEDULE)
    page.shows("1 run requested", "Next tick", patience_s=PATIENCE_S)

    page.open(f"/assets/hidden_states?view=partitions&partition={home.parts[-1]}")
    page.shows(f"Materialized ({len(home.parts)})", "Failed (0)", "Missing (0)", patience_s=PATIENCE_S)
    page.open("/runs?view=backfills")
    page.shows("extract_missing_schedule", f"{len(home.parts) - 3} partitions", "1 partition", "Success")
    page.no_longer_shows("Started")
    assert "Failure" not in page.text
    page.screenshot("backfills")

    page.open("/assets/hidden_states?view=checks&checkDetail=rows_accounted")
    page.click("Execution history")
    page.click("Partitions")
    page.shows(f"Passed ({len(home.parts)})", "Failed (0)", "Skipped (0)", "Missing (0)")
    page.screenshot("checks")
