"""`fabric`: a thin command line over the same assets that the Dagster UI runs. Its commands are in `commands`.

Exit codes: 0 done; 1 something was refused or failed, said in a sentence; 2 the call itself is wrong.
"""

from __future__ import annotations

import logging
import sys

import click

from fabric_assets.commands.export import export
from fabric_assets.commands.extract import extract
from fabric_assets.commands.home import init
from fabric_assets.commands.plan import plan_command
from fabric_assets.commands.probe_sets import register_command, withdraw
from fabric_assets.commands.trace import trace_command
from fabric_assets.commands.validate import validate
from fabric_assets.commands.worker import contract, worker
from io_managers.errors import LineageError, StoreError
from resources.errors import FabricError


def main() -> None:
    """Runs `fabric`; an error raised on purpose is a sentence on standard error, not a traceback."""
    try:
        fabric(standalone_mode=True)
    except (FabricError, StoreError, LineageError) as error:
        click.echo(f"fabric: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"fabric: {error}; make that path readable and writable, or name another", err=True)
        sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def fabric() -> None:
    """One proven hidden-state vector per probe. Everything made is kept in FABRIC_HOME (default: .fabric)."""
    _show_progress()


for _command in (
    init,
    register_command,
    plan_command,
    extract,
    validate,
    trace_command,
    export,
    withdraw,
    contract,
    worker,
):
    fabric.add_command(_command)


def _show_progress() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    fabric_logger = logging.getLogger("fabric")
    fabric_logger.addHandler(handler)
    fabric_logger.setLevel(logging.INFO)
    fabric_logger.propagate = False
