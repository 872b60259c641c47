"""The long tests (`-m soak`): the proof over thousands of right and wrong engines, workers and brokers that are killed.
Writes results/soak.json, or results/soak_NAME.json for those of one folder or file; what tests recorded is in `seen`.

usage: python benchmarks/soak.py [tests/NAME | tests/.../test_NAME.py]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from machine import describe

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Runs the tests and writes what pytest closed with; its exit code is this one's."""
    started = time.monotonic()
    chosen = sys.argv[1:]
    command = [sys.executable, "-m", "pytest", "-m", "soak", "-q", "-rs", "--timeout", "3600", *chosen]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        reporting = [*command, f"--junitxml={report}"]
        run = subprocess.run(reporting, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        seen = _recorded(report) if report.exists() else {}
    print(run.stdout)
    closing = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else ""
    result = describe() | {
        "pytest": " ".join(command[1:]),
        "seconds": round(time.monotonic() - started, 1),
        "closing_line": closing,
        "exit_code": run.returncode,
        "seen": seen,
    }
    name = f"soak_{Path(chosen[0]).stem.removeprefix('test_')}.json" if chosen else "soak.json"
    (RESULTS / name).write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(run.returncode)


def _recorded(report: Path) -> dict[str, str]:
    """What tests gave to `record_testsuite_property`."""
    return {p.attrib["name"]: p.attrib["value"] for p in ElementTree.parse(report).findall("testsuite/properties/*")}


if __name__ == "__main__":
    main()
