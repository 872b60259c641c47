"""`fabric validate`: an engine's folder through the proof, and what was shown of it."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from fabric_assets.engine_contract import checkpoint_at_hand, contract_of
from io_managers import layout
from resources.checkpoint import Checkpoint
from resources.engine.config import read_engine_config, read_engine_record
from resources.engine.plugins import configured_plugins
from resources.errors import EngineRefused
from resources.model import Model
from resources.proof import load
from resources.proof.validation import ValidationReport
from resources.records import EngineRecord
from resources.report import lines, page

logger = logging.getLogger("fabric.proof")


@click.command()
@click.argument("engine_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--html", "html_file", type=click.Path(path_type=Path), default=None, help="Also write a page to keep.")
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON.")
@click.option(
    "--model",
    default=None,
    help="The checkpoint that the engine was built from, to compare its vectors with; unset: the one that FABRIC_MODEL "
    "or the package has, if it is that one.",
)
@click.option("--threads", type=click.IntRange(min=1), default=None, help="CPU threads; unset: every core.")
def validate(engine_dir: Path, html_file: Path | None, as_json: bool, model: str | None, threads: int | None) -> None:
    """Load the engine in ENGINE_DIR through the proof and print what was shown. Exit 1 when it is refused."""
    foreign = read_engine_config(engine_dir).provenance is None
    report = _validated(engine_dir, None if foreign else read_engine_record(engine_dir), model, threads)
    if html_file is not None:
        html_file.write_text(page(report, validated_at=datetime.now(UTC)), encoding="utf-8")
        click.echo(f"the page is in {html_file}", err=True)
    click.echo(report.to_json() if as_json else "\n".join(lines(report)))
    sys.exit(0 if report.verdict == "proved" else 1)


def _validated(
    engine_dir: Path, engine: EngineRecord | None, model: str | None, threads: int | None
) -> ValidationReport:
    try:
        with load(
            engine_dir,
            checkpoint=_checkpoint(engine, model),
            threads=threads,
            plugins=configured_plugins(),
            progress=logger.info,
        ) as proven:
            if engine is None:
                return proven.report
            return replace(proven.report, contract=contract_of(proven, engine, None, layout.lake_path()))
    except EngineRefused as refusal:
        return refusal.report


def _checkpoint(engine: EngineRecord | None, model: str | None) -> Checkpoint | None:
    """The one that is named, which `load` refuses if it is another; else the one that happens to be at hand."""
    if model is not None:
        return Model(checkpoint=model).open_checkpoint()
    if engine is None:
        return None
    checkpoint, why = checkpoint_at_hand(engine, Model())
    logger.info(f"language-model head: {why}")
    return checkpoint
