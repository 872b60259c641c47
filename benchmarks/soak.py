"""The long tests (`-m soak`): the proof over thousands of right and wrong engines. Writes results/soak.json.

usage: python benchmarks/soak.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from machine import describe

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "soak.json"


def main() -> None:
    """Runs the tests and writes what pytest closed with; its exit code is this one's."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-m", "soak", "-q", "--timeout", "3600"]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(run.stdout)
    closing = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else ""
    result = describe() | {
        "pytest": " ".join(command[1:]),
        "seconds": round(time.monotonic() - started, 1),
        "closing_line": closing,
        "exit_code": run.returncode,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(run.returncode)


if __name__ == "__main__":
    main()
