"""Seconds from a fresh clone to the demo's last line. Writes results/fresh_clone.json.

usage: python benchmarks/fresh_clone.py
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from machine import describe

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "fresh_clone.json"


def main() -> None:
    """Clones this checkout's HEAD into a temporary folder and runs `make demo` there."""
    environment = {k: v for k, v in os.environ.items() if k not in ("FABRIC_HOME", "VIRTUAL_ENV", "PYTHONPATH")}
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), f"{folder}/clone"], check=True)
        demo = subprocess.run(
            ["make", "demo"], cwd=f"{folder}/clone", env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        seconds = time.monotonic() - started
    result = describe() | {"seconds": round(seconds, 1), "last_lines": demo.stdout.splitlines()[-6:]}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
