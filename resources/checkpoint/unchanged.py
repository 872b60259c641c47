"""Files of a checkpoint that must stay what they were while it is open.

Contract: what is parsed, what is digested and what is read later are of the same bytes, or a CheckpointError says which
file became another. Without this a folder that a training run writes to again would give one model's weights under the
digest of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from resources.errors import CheckpointError
from resources.records import file_digest


class Unchanged:
    """Files as they were when `watch` was called, which is before anything of them is read."""

    def __init__(self) -> None:
        self._marks: dict[Path, tuple[int, ...]] = {}

    def watch(self, path: Path) -> None:
        """`path` is looked at now; it must be there."""
        self._marks[path] = _mark(path)

    def digests(self) -> Mapping[Path, str]:
        """xxh3-128, hex, of the bytes of every file; they are read once. Refuses files that are others than they were,
        now as the first time."""
        found = self._digests
        self.require()
        return found

    @cached_property
    def _digests(self) -> Mapping[Path, str]:
        return {path: _digest(path) for path in self._marks}

    def require(self, *paths: Path) -> None:
        """Refuses any of `paths`, or of all files where none is named, that is another than it was."""
        for path in paths or tuple(self._marks):
            if _mark(path) != self._marks[path]:
                raise CheckpointError(
                    f"{path} changed since it was opened; let whatever writes to it finish, then start again"
                )


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; make it readable") from error


def _mark(path: Path) -> tuple[int, ...]:
    """What another file under this name, or other content, does not share; links are followed."""
    try:
        found = path.stat()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}; fetch the model again, or name another"
        ) from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
