"""FABRIC_HOME: made once, with a Dagster instance whose database exists before anything runs in parallel.

Of twelve processes that open a fresh instance at once, five were seen to fail on SQLite migrations, so
`initialise` holds a file lock and creates the schema before it returns.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from pathlib import Path

import dagster as dg

from fabric_assets.partitions import probe_shards
from fabric_assets.upkeep.dead_runs import release_dead_runs
from io_managers import layout
from io_managers.delta_table import janitor
from io_managers.places import place
from resources.errors import ConfigurationError

LEFT_OVER_S = 86400


def initialise() -> Path:
    """Makes the home's folders and instance where they are missing; returns DAGSTER_HOME."""
    if set("%#?") & set(str(layout.home())):
        raise ConfigurationError(
            f"FABRIC_HOME is {layout.home()}; a path with %, # or ? is cut short by SQLite's connection strings; "
            "choose one without them"
        )
    lake = place(layout.lake_path())
    for folder in (lake, layout.engines_path(), layout.probes_path(), layout.scratch_path()):
        folder.mkdir(parents=True, exist_ok=True)
    dagster_home = layout.home() / "dagster"
    dagster_home.mkdir(exist_ok=True)
    with open(layout.home() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (dagster_home / "dagster.yaml").exists():
            shutil.copyfile(Path(__file__).parent / "dagster.yaml", dagster_home / "dagster.yaml")
            with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
                instance.get_dynamic_partitions(str(probe_shards.name))
        _clean_up()
    return dagster_home


def open_instance() -> dg.DagsterInstance:
    """The home's instance, initialised, in which no dead run holds anything up."""
    instance = dg.DagsterInstance.from_config(str(initialise()))
    release_dead_runs(instance)
    return instance


def _clean_up() -> None:
    """Removes what killed runs left in the lake, among the engines and in the scratch folder more than a day ago."""
    lake = place(layout.lake_path())
    if isinstance(lake, Path):
        janitor(lake, older_than_s=LEFT_OVER_S)
    limit = time.time() - LEFT_OVER_S
    for left in (*layout.scratch_path().iterdir(), *layout.engines_path().glob(".building-*")):
        if left.stat().st_mtime < limit:
            shutil.rmtree(left, ignore_errors=True)
