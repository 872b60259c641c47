"""The folder that engines lie in, each in a folder named by its id.

Contract: an engine is written to a temporary folder and renamed into place when whole and on the disk, so that a folder
named by an engine's id always holds that engine; one that was damaged there is put aside.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resources.durable import sync_file
from resources.engine.config import read_engine_config, read_engine_record, require_unchanged
from resources.errors import EngineError

FOLDER_CHARACTERS = 16
"""An engine's folder is named by this many leading characters of its id."""


@contextmanager
def building_folder(engines_folder: Path) -> Iterator[Path]:
    """A new folder in `engines_folder` to write an engine in; gone at the end unless it was put in place."""
    engines_folder.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=engines_folder))
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def put_in_place(building: Path, engines_folder: Path) -> Path:
    """Renames a whole engine directory of `engines_folder` to its id's name, and gives that; a sound one stays."""
    target = engines_folder / read_engine_record(building).engine_id[:FOLDER_CHARACTERS]
    building.chmod(0o755)
    for path in (*building.iterdir(), building):
        sync_file(path)
    try:
        building.rename(target)
    except OSError:
        if not os.path.lexists(target):
            raise
        if is_sound(target):
            return target
        target.rename(Path(tempfile.mkdtemp(prefix=".damaged-", dir=engines_folder)) / target.name)
        building.rename(target)
    sync_file(engines_folder)
    return target


def is_sound(directory: Path) -> bool:
    """Whether `directory` holds an unchanged engine of the id that names it."""
    try:
        config = read_engine_config(directory)
        require_unchanged(directory, config)
    except EngineError:
        return False
    return directory.name == config.engine_id[:FOLDER_CHARACTERS]
