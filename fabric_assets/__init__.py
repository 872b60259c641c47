import warnings

import dagster as dg

warnings.filterwarnings("ignore", category=dg.BetaWarning, message=".*backfill_policy.*")
