"""The project's jobs, run in this process by the command line."""

from __future__ import annotations

from typing import Any

import dagster as dg

from io_managers.errors import LineageError, StoreError
from resources.errors import FabricError

OWN_ERRORS = {e.__name__ for e in (StoreError, LineageError, FabricError, *FabricError.__subclasses__())}
CONSOLE_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def run_job(
    definitions: dg.Definitions, instance: dg.DagsterInstance, job: str, run_config: dict[str, Any], **options: Any
) -> str:
    """Runs one job and gives its run id. Raises `FabricError` with a failure's own sentence, also where a check failed
    and the run did not.

    `run_config` may configure resources that the job lacks; `options` are those of `execute_in_process`.
    """
    resolved = definitions.resolve_job_def(job)
    # Dagster refuses configuration of a resource that the job has not.
    resources = {k: v for k, v in run_config["resources"].items() if k in resolved.resource_defs}
    result = resolved.execute_in_process(
        instance=instance,
        run_config=CONSOLE_QUIET | run_config | {"resources": resources},
        raise_on_error=False,
        **options,
    )
    checks = [
        f"{check.asset_key.to_user_string()}: check {check.check_name} failed"
        + "".join(f", {value.value}" for name, value in check.metadata.items() if name == "sentence")
        for check in result.get_asset_check_evaluations()
        if not check.passed and check.severity == dg.AssetCheckSeverity.ERROR
    ]
    if result.success and not checks:
        return result.run_id
    sentences = [_sentence(event.step_failure_data) for event in result.get_step_failure_events()]
    said = "; ".join(s.strip() for s in (checks or sentences) if s)
    raise FabricError(said or f"run {result.run_id} failed before its first step; `make ui` shows its log")


def _sentence(data: Any) -> str:
    """What a failed step has to say: its Failure's description, else the first error of this project's own among the
    causes, else the last cause."""
    if data.user_failure_data:
        return data.user_failure_data.description or ""
    error = data.error
    while error is not None and error.cause is not None and error.cls_name not in OWN_ERRORS:
        error = error.cause
    return error.message.partition(": ")[2] if error is not None else ""
