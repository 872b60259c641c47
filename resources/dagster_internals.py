"""Every name that this project takes from inside Dagster (1.13), which has no public one for it.

An upgrade of Dagster has this module to look at; `tests/test_imports.py` refuses such an import anywhere else.

- A backfill is added from code: the public ways to add one are the UI and its GraphQL.
- A check's result of one partition of a run over many names the materialisation that it is of.
- Dead runs are looked for only on the embedded instance, whose storage is told by its class.
- A step is executed by a worker of another machine: the plan of one step, how it retries, how it fails.
"""

from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.events import StepFailureData
from dagster._core.execution.api import create_execution_plan, execute_plan_iterator
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.handle import StepHandle
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.plan.state import KnownExecutionState
from dagster._core.execution.plan.step import ExecutionStep
from dagster._core.execution.retries import RetryMode, get_retries_config
from dagster._core.storage.event_log.sqlite import SqliteEventLogStorage
from dagster._core.utils import make_new_backfill_id
from dagster._utils.error import SerializableErrorInfo, serializable_error_info_from_exc_info

__all__ = [
    "AssetCheckEvaluationTargetMaterializationData",
    "BulkActionStatus",
    "BulkActionsFilter",
    "ExecutionPlan",
    "ExecutionStep",
    "KnownExecutionState",
    "PartitionBackfill",
    "PlanOrchestrationContext",
    "ReconstructableJob",
    "RetryMode",
    "SerializableErrorInfo",
    "SqliteEventLogStorage",
    "StepFailureData",
    "StepHandle",
    "create_execution_plan",
    "execute_plan_iterator",
    "get_retries_config",
    "make_new_backfill_id",
    "serializable_error_info_from_exc_info",
]
