"""Asset checks: the engine is proved; rows are accounted for; vectors are finite, undamaged and distinct."""

from collections.abc import Iterator

import dagster as dg

from fabric_assets import reports
from fabric_assets.defs.engines import EngineChoice, engine_validation_report
from fabric_assets.defs.hidden_states import hidden_states
from fabric_assets.defs.partitions import probe_shards
from io_managers import audit, layout
from io_managers.reading import latest_verdict, read_engine
from resources.probe_files import shard_of

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


@dg.asset_check(asset=engine_validation_report, blocking=True)
def convention_proved(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """The gather convention of the run's engine is proved; a refused engine stops what is downstream."""
    engine = read_engine(layout.lake_path(), run_id=context.run.run_id)
    verdict = latest_verdict(layout.lake_path(), engine.engine_id)
    proved = verdict is not None and verdict.verdict == "proved"
    return dg.AssetCheckResult(passed=proved, severity=ERROR, metadata=reports.verdict_row(engine, verdict))


@dg.multi_asset_check(
    name="hidden_states_checks",
    specs=[
        dg.AssetCheckSpec(
            "rows_accounted",
            asset=hidden_states,
            blocking=True,
            partitions_def=probe_shards,
            description="Probes in = vectors stored + probes refused, by stage and reason.",
        ),
        dg.AssetCheckSpec(
            "all_finite",
            asset=hidden_states,
            blocking=True,
            partitions_def=probe_shards,
            description="No stored element is an infinity or NaN.",
        ),
        dg.AssetCheckSpec(
            "payload_hashes",
            asset=hidden_states,
            blocking=True,
            partitions_def=probe_shards,
            description="Every payload still has the hash it was stored with.",
        ),
        dg.AssetCheckSpec(
            "distinct_vectors",
            asset=hidden_states,
            partitions_def=probe_shards,
            description="Two different token sequences do not share one vector (a warning).",
        ),
    ],
)
def hidden_states_checks(context: dg.AssetCheckExecutionContext, config: EngineChoice) -> Iterator[dg.AssetCheckResult]:
    """Reads every vector of the run's partitions back once, for all four checks."""
    lake = layout.lake_path()
    engine = config.of(read_engine(lake, run_id=context.run.run_id))
    accounts = [
        audit.account(lake, part, model_key=engine.model_key, rows_in=shard_of(layout.probes_path(), part)[1].n_rows)
        for part in context.partition_keys
    ]
    scans = [audit.scan_vectors(lake, part, model_key=engine.model_key) for part in context.partition_keys]
    yield _result("rows_accounted", all(a.balanced for a in accounts), ERROR, reports.accounts(accounts))
    yield _result("all_finite", all(not s.non_finite for s in scans), ERROR, reports.scans(scans))
    yield _result("payload_hashes", all(not s.damaged for s in scans), ERROR, reports.scans(scans))
    yield _result("distinct_vectors", all(not s.shared_vectors for s in scans), WARN, reports.scans(scans))


def _result(
    name: str, passed: bool, severity: dg.AssetCheckSeverity, metadata: dict[str, dg.MetadataValue]
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key="hidden_states", check_name=name, passed=passed, severity=severity, metadata=metadata
    )
