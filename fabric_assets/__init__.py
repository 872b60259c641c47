"""What exists, in Dagster's words. The warning that backfill policies are beta, one for each asset, is hidden."""

import warnings

import dagster as dg

warnings.filterwarnings("ignore", category=dg.BetaWarning, message=".*backfill_policy.*")
