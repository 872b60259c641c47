"""The long tests (`-m soak`): the proof over thousands of right and wrong engines, workers and brokers that are killed.
Writes results/soak.json, or results/soak_FOLDER.json for those of one folder.

usage: python benchmarks/soak.py [tests/FOLDER]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from machine import describe

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Runs the tests and writes what pytest closed with; its exit code is this one's."""
    started = time.monotonic()
    folder = sys.argv[1:]
    command = [sys.executable, "-m", "pytest", "-m", "soak", "-q", "-rs", "--timeout", "3600", *folder]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(run.stdout)
    closing = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else ""
    result = describe() | {
        "pytest": " ".join(command[1:]),
        "seconds": round(time.monotonic() - started, 1),
        "closing_line": closing,
        "exit_code": run.returncode,
    }
    name = f"soak_{Path(folder[0]).name}.json" if folder else "soak.json"
    (RESULTS / name).write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(run.returncode)


if __name__ == "__main__":
    main()
