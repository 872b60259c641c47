"""Peak memory of a partition of 4 million rows against one of 1 million, with a tiny engine.

Each size runs in a process and a FABRIC_HOME of its own, through the same Dagster job as any other partition; the peak
is the child's resident set (getrusage). Writes results/partition_memory.json.

usage: python benchmarks/partition_memory.py [--rows 1000000 4000000]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe

RESULT = Path(__file__).parent / "results" / "partition_memory.json"


def main() -> None:
    """Runs each size and writes the result file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--child", type=int, default=None)
    arguments = parser.parse_args()
    if arguments.child:
        _child(arguments.child)
        return
    sizes = [_measure(rows) for rows in arguments.rows]
    result = describe() | {
        "engine": "random llama, hidden 16, 1 layer, float32, ONNX Runtime",
        "sizes": sizes,
        "peak_ratio": sizes[-1]["peak_rss_mb"] / sizes[0]["peak_rss_mb"],
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def _measure(rows: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("FABRIC_BENCH_DIR")) as folder:
        home = Path(folder)
        probes = home / "probes.jsonl"
        with open(probes, "w") as out:
            for row in range(rows):
                out.write(f'{{"text": "probe {row * 7919 % rows}"}}\n')
        started = time.monotonic()
        child = subprocess.run(
            [sys.executable, __file__, "--child", str(rows)],
            env=os.environ | {"FABRIC_HOME": str(home / "home"), "FABRIC_BENCH_PROBES": str(probes)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        report = json.loads(child.stdout.splitlines()[-1])
        return {"rows": rows, "seconds": round(time.monotonic() - started, 1), **report}


def _child(rows: int) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from fabric_assets.cli import fabric
    from io_managers import layout
    from tests.tiny import tiny_gguf

    probes = Path(os.environ["FABRIC_BENCH_PROBES"])
    checkpoint = probes.parent / "tiny.gguf"
    tiny_gguf(checkpoint, hidden=16, layers=1)
    batches = ["--max-tokens", "64", "--max-batch-tokens", "16384", "--max-batch-size", "1024"]
    shard = ["--shard-rows", str(rows)]
    fabric.main(["extract", str(probes), "--model", str(checkpoint), *batches, *shard], standalone_mode=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    stored = sum(f.stat().st_size for f in layout.lake_path().rglob("*.parquet"))
    print(json.dumps({"peak_rss_mb": round(peak), "lake_mb": round(stored / 2**20)}))


if __name__ == "__main__":
    main()
