"""What checks say, partition by partition.

Dagster (1.13) gives the result of a check in a run over a range of partitions no partition, and then shows each of them
as skipped. The evaluations made here name theirs, in a run of one partition as of many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import dagster as dg

from fabric_assets.reports import Metadata
from resources.dagster_internals import AssetCheckEvaluationTargetMaterializationData as TargetMaterialization


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a check found of one partition."""

    passed: bool
    metadata: Metadata
    description: str | None = None


def evaluations(
    instance: dg.DagsterInstance,
    spec: dg.AssetCheckSpec,
    outcomes: Mapping[str, Outcome],
    *,
    severity: dg.AssetCheckSeverity,
) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
    """By partition key; for a `multi_asset_check` to yield. The step fails where a blocking check failed."""
    for part, outcome in outcomes.items():
        yield dg.AssetCheckEvaluation(
            asset_key=spec.asset_key,
            check_name=spec.name,
            passed=outcome.passed,
            metadata=outcome.metadata,
            target_materialization_data=_latest(instance, spec.asset_key, part),
            severity=severity,
            description=outcome.description,
            blocking=spec.blocking,
            partition=part,
        )
    yield dg.Output(None, output_name=spec.get_python_identifier())


def _latest(instance: dg.DagsterInstance, asset: dg.AssetKey, part: str) -> TargetMaterialization | None:
    """The materialisation that was looked at; without it the UI takes a result for one of an earlier one."""
    found = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[part]), limit=1)
    return next(
        (
            TargetMaterialization(storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp)
            for record in found.records
        ),
        None,
    )
