"""What must outlive a power cut: written to the disk itself before anything is said to be stored."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """fsync of a file, or of a folder, whose names then are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folders(folder: Path, root: Path) -> None:
    """fsync of `folder` and of every folder above it up to `root`."""
    sync_file(folder)
    while folder != root:
        folder = folder.parent
        sync_file(folder)
