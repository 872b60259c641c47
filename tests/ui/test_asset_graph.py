"""The asset graph shows what is made of what, each asset in its group, with how far it is."""

from __future__ import annotations

import pytest
from selenium.webdriver import ActionChains, Keys

from tests.ui.page import Page

pytestmark = pytest.mark.ui

GROUPS = {
    "engines": ["engine", "engine_validation_report"],
    "inputs": ["probe_sets", "tokenised_batches", "work_items"],
    "vectors": ["extraction_requests", "hidden_states"],
}

BOX = "const box = arguments[0].closest('foreignObject').getBoundingClientRect(); return box.toJSON()"


def test_the_asset_graph_shows_every_asset_in_its_group(page: Page) -> None:
    page.open("/asset-groups", width=1900, height=1560)
    page.shows(*GROUPS)
    ActionChains(page.browser).key_down(Keys.ALT).send_keys("e").key_up(Keys.ALT).perform()
    page.shows("hidden_states")
    # The address says now that the groups are open; opened so, the graph fits the window.
    page.browser.refresh()
    page.shows(*(asset for assets in GROUPS.values() for asset in assets))
    page.no_longer_shows("Loading...")
    page.screenshot("asset_graph")
    for group, assets in GROUPS.items():
        outer = page.browser.execute_script(BOX, page.element(group, within="//*[local-name()='svg']"))
        for asset in assets:
            inner = page.browser.execute_script(BOX, page.element(asset, within="//*[local-name()='svg']"))
            assert outer["left"] <= inner["left"] and inner["right"] <= outer["right"], (group, asset)
            assert outer["top"] <= inner["top"] and inner["bottom"] <= outer["bottom"], (group, asset)
