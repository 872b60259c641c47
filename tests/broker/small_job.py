"""A code location of one small job, whose steps end in every way that a step can."""

import dagster as dg


@dg.op
def works() -> None:
    """Succeeds."""


@dg.op
def fails() -> None:
    raise ZeroDivisionError("as it must")


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
def fails_at_first(context: dg.OpExecutionContext) -> None:
    if not context.retry_number:
        raise ZeroDivisionError("at first")


@dg.job
def small() -> None:
    works()
    fails()
    fails_at_first()


defs = dg.Definitions(jobs=[small])
