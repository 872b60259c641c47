"""Asset checks: the engine is proved; rows are accounted for; vectors are finite, undamaged and distinct."""

from collections.abc import Iterator

import dagster as dg

from fabric_assets import reports
from fabric_assets.defs.engines import EngineChoice, engine_validation_report
from fabric_assets.defs.hidden_states import hidden_states
from fabric_assets.partitions import probe_shards
from fabric_assets.reports.check_results import Outcome, evaluations
from fabric_assets.upkeep.registered import registered_shard
from io_managers import audit, layout
from io_managers.reading import latest_verdict, read_engine

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


@dg.asset_check(asset=engine_validation_report, blocking=True)
def convention_proved(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """The gather convention of the run's engine is proved; a refused engine stops what is downstream."""
    engine = read_engine(layout.lake_path(), run_id=context.run.run_id)
    verdict = latest_verdict(layout.lake_path(), engine.engine_id)
    proved = verdict is not None and verdict.verdict == "proved"
    return dg.AssetCheckResult(passed=proved, severity=ERROR, metadata=reports.verdict_row(engine, verdict))


ROWS_ACCOUNTED = dg.AssetCheckSpec(
    "rows_accounted",
    asset=hidden_states,
    blocking=True,
    partitions_def=probe_shards,
    description="Probes in = vectors stored + probes refused, by stage and reason.",
)
ALL_FINITE = dg.AssetCheckSpec(
    "all_finite",
    asset=hidden_states,
    blocking=True,
    partitions_def=probe_shards,
    description="No stored element is an infinity or NaN.",
)
PAYLOAD_HASHES = dg.AssetCheckSpec(
    "payload_hashes",
    asset=hidden_states,
    blocking=True,
    partitions_def=probe_shards,
    description="Every payload still has the hash it was stored with.",
)
DISTINCT_VECTORS = dg.AssetCheckSpec(
    "distinct_vectors",
    asset=hidden_states,
    partitions_def=probe_shards,
    description="Two different token sequences do not share one vector (a warning).",
)


@dg.multi_asset_check(name="hidden_states_checks", specs=[ROWS_ACCOUNTED, ALL_FINITE, PAYLOAD_HASHES, DISTINCT_VECTORS])
def hidden_states_checks(
    context: dg.AssetCheckExecutionContext, config: EngineChoice
) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
    """Reads every vector of the run's partitions back once, for all four checks."""
    lake, parts = layout.lake_path(), context.partition_keys
    engine = config.of(read_engine(lake, run_id=context.run.run_id))
    accounts = [
        audit.account(lake, part, model_key=engine.model_key, rows_in=registered_shard(part)[1].n_rows)
        for part in parts
    ]
    scans = [audit.scan_vectors(lake, part, model_key=engine.model_key) for part in parts]
    balanced = {a.part: Outcome(passed=a.balanced, metadata=reports.account(a)) for a in accounts}
    yield from evaluations(context.instance, ROWS_ACCOUNTED, balanced, severity=ERROR)
    for spec, severity, count in (
        (ALL_FINITE, ERROR, "non_finite"),
        (PAYLOAD_HASHES, ERROR, "damaged"),
        (DISTINCT_VECTORS, WARN, "shared_vectors"),
    ):
        clean = {s.part: Outcome(passed=getattr(s, count) == 0, metadata=reports.scan(s)) for s in scans}
        yield from evaluations(context.instance, spec, clean, severity=severity)
