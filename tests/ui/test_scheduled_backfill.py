"""A schedule that a person turns on: its tick starts a backfill, which completes."""

from __future__ import annotations

import pytest

from tests.ui.home import Home
from tests.ui.page import Page

pytestmark = pytest.mark.ui

PATIENCE_S = 240.0


def test_a_tick_of_the_schedule_starts_a_backfill_that_completes(page: Page, home: Home) -> None:
    page.open("/locations/fabric/schedules/extract_missing_schedule")
    page.shows("Every minute", "Schedule has never run")
    page.browser.find_element("xpath", "//input[@type='checkbox']/..").click()
    page.shows("1 run requested", "Next tick", patience_s=PATIENCE_S)
    page.screenshot("schedule")

    page.open("/runs?view=backfills")
    page.shows("Success", patience_s=PATIENCE_S)
    page.screenshot("backfills")
    page.open(f"/assets/hidden_states?view=partitions&partition={home.parts[-1]}")
    page.shows("Failed (0)", f"Materialized ({len(home.parts)})", "Missing (0)")
