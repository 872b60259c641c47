"""`fabric trace`: a vector's way back to its source row, for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from fabric_assets.commands.tracing import Trace, trace
from io_managers import layout
from io_managers.vectors import default_model_key

TOKENS_SHOWN = 40


@click.command(name="trace")
@click.argument("part")
@click.argument("probe_id")
@click.option("--model-key", default=None, help="Which model's vector; unset: the newest engine's.")
def trace_command(part: str, probe_id: str, model_key: str | None) -> None:
    """Go from the vector of PROBE_ID in PART back to its source row, and show each step again. Exit 1 if one fails."""
    lake = layout.lake_path()
    found = trace(lake, layout.engines_path(), part, probe_id, model_key=model_key or default_model_key(lake))
    click.echo("\n".join(_lines(found)))
    sys.exit(0 if found.passed else 1)


def _lines(found: Trace) -> Iterator[str]:
    failed = [step.name for step in found.steps if not step.passed]
    what = "refused" if found.refusal is not None else "one vector"
    yield f"{found.part} {found.probe_id}: {what}, " + (
        f"not shown: {', '.join(failed)}" if failed else "each step shown"
    )
    for step in found.steps:
        yield f"  {'ok    ' if step.passed else 'FAILED'} {step.name}: {step.seen}"
    if found.tokens:
        yield "  tokens:"
    left_out = max(0, len(found.tokens) - TOKENS_SHOWN)
    if left_out:
        yield f"    ... {left_out:,} before these"
    for token in found.tokens[left_out:]:
        yield f"    {token.index:6d} {token.token_id:8d} {token.text!r}{'  <- gathered' if token.gathered else ''}"
