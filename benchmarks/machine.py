"""What every result file names: the machine, the versions, the date and the command."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = ("dagster", "deltalake", "duckdb", "numpy", "onnx", "onnxruntime", "polars", "pyarrow", "tokenizers")


def describe() -> dict[str, object]:
    """The header of a result file."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", os.path.relpath(sys.argv[0]), *map(_portable, sys.argv[1:])]),
        "commit": _commit(),
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "memory_gib": _memory_gib(), "system": platform.platform()},
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES},
    }


def _portable(argument: str) -> str:
    """A path without the folders of one machine."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def _commit() -> str:
    """FABRIC_COMMIT where the tree was copied without its history."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        run = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("FABRIC_COMMIT", "unknown")
    return run.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
