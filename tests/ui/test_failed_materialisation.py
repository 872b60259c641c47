"""A materialisation that a refused engine ended: the red partition, its run, the evidence."""

from __future__ import annotations

import pytest

from tests.ui.home import Home
from tests.ui.page import Page

pytestmark = pytest.mark.ui


def test_a_failed_partition_leads_to_the_evidence_of_the_refusal(page: Page, home: Home) -> None:
    page.open(f"/assets/hidden_states?view=partitions&partition={home.parts[0]}")
    page.shows(f"Run {home.refused_extraction[:8]} failed, and did not materialize this asset")

    page.open(f"/runs/{home.refused_extraction}?logs=step%3Ahidden_states")
    page.shows("Failure", "Errored (1)", "STEP_FAILURE", "is refused (wrong-dependence)")

    page.click("View full message")
    page.shows(
        "is refused (wrong-dependence)",
        "build an engine that is causal",
        "tie-break",
        "fingerprints",
        "B's last token (B read at its first token)",
    )
    page.screenshot("refusal_evidence")

    page.click("[Show Markdown]")
    page.shows("Proof by dependence")
    assert len(page.pictures()) >= 2
    page.screenshot("refusal_plots")


def test_a_refused_engine_fails_its_check_and_the_report_is_kept(page: Page, home: Home) -> None:
    page.open(f"/runs/{home.refused_validation}")
    page.shows("Failure", "Errored (1)", "engine_validation_report_convention_proved", "verdict refused")
    page.open("/assets/engine_validation_report?view=checks&checkDetail=convention_proved")
    page.click("Execution history")
    page.shows("Failed", "Passed")
