"""A partition of `hidden_states` shows what was stored and from what; the overview plots it over the partitions."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.by import By

from tests.ui.home import SHARD_ROWS, Home
from tests.ui.page import Page

pytestmark = [pytest.mark.ui, pytest.mark.usefixtures("scheduled")]


def test_a_partition_shows_its_figures_its_vectors_and_its_contract(page: Page, home: Home) -> None:
    page.open(f"/assets/hidden_states?view=partitions&partition={home.parts[1]}", height=2300)
    page.shows(
        f"dagster/partition_row_count {SHARD_ROWS - 1}",
        "probe_sets: empty-text",
        "tokens_per_second_peak",
        "versions_read",
        "gathered_token",
        " make ",
        "proved, exclusive_end",
        "norm_histogram",
        "█",
    )
    page.screenshot("partition")


def test_figures_are_plotted_over_the_partitions(page: Page, home: Home) -> None:
    page.open("/assets/hidden_states?view=overview", height=1100)
    page.click("Plots")
    page.shows("tokens_per_second_average", "dagster/partition_row_count", "norm_mean")
    drawn = [c for c in page.browser.find_elements(By.TAG_NAME, "canvas") if c.size["width"] and c.size["height"]]
    assert len(drawn) >= 8
    page.screenshot("partition_plots")


def test_a_column_says_what_it_is_made_of(page: Page) -> None:
    page.open("/assets/hidden_states?view=overview")
    page.shows("payload binary non-nullable made of tokenised_batches.token_ids")
    page.open("/assets/tokenised_batches?view=overview")
    page.shows("made of probe_sets.text")
