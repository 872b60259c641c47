"""Where a home keeps what runs make: the lake, engines, registered probe files, reports and scratch files.

Contract: one variable, FABRIC_HOME, moves all of it; FABRIC_LAKE and FABRIC_CONTRACT one thing each. Nothing here makes
a folder.
"""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """FABRIC_HOME if set; else `.fabric` in the source tree that this package lies in; else `.fabric` here."""
    if given := os.environ.get("FABRIC_HOME"):
        return Path(given).expanduser().absolute()
    tree = Path(__file__).resolve().parent.parent
    return (tree if (tree / "pyproject.toml").is_file() else Path.cwd()) / ".fabric"


def lake_path() -> Path | str:
    """The folder of Delta tables; with FABRIC_LAKE that one, or the URL of an object store (`s3://bucket/prefix`)."""
    given = os.environ.get("FABRIC_LAKE")
    if given and "://" in given:
        return given
    return Path(given).expanduser().absolute() if given else home() / "lake"


def engines_path() -> Path:
    """The folder of engine directories."""
    return home() / "engines"


def probes_path() -> Path:
    """The folder of registered probe sets."""
    return home() / "probes"


def report_path(report_id: str) -> Path:
    """The page of one validation."""
    return home() / "reports" / f"{report_id}.html"


def scratch_path() -> Path:
    """The folder of files that a run may leave when it is killed; safe to delete when nothing runs."""
    return home() / "scratch"


def contract_path() -> Path:
    """FABRIC_CONTRACT if set; else the home's contract: what workers must show, and the name of their queue."""
    given = os.environ.get("FABRIC_CONTRACT")
    return Path(given).expanduser().absolute() if given else home() / "contract.json"
