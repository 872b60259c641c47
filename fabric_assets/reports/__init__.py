"""What Dagster shows: metadata of what was made, and results of checks, partition by partition.

Contract: metadata is made of records alone; but for `check_results`, which looks up the materialisation that a result
is of, nothing here reads a table, an instance or an engine.
"""

from fabric_assets.reports.metadata import (
    Metadata,
    account,
    columns,
    contract,
    engine,
    rows_written,
    scan,
    table_definition,
    tokenised,
    verdict_row,
)

__all__ = [
    "Metadata",
    "account",
    "columns",
    "contract",
    "engine",
    "rows_written",
    "scan",
    "table_definition",
    "tokenised",
    "verdict_row",
]
