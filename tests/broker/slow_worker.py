"""A `fabric worker` whose every batch takes some seconds longer than it needs; all else is the product's own.

usage: slow_worker.py SECONDS [option of `fabric worker` ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from fabric_assets.cli import main
from resources.packing import PackedBatch
from resources.proof import ProvenEngine


def slow_down(seconds: float) -> None:
    """Makes every batch of a proven engine wait before its vectors are there."""
    submit = ProvenEngine.submit

    def submit_slowly(engine: ProvenEngine, batch: PackedBatch) -> Callable[[], np.ndarray]:
        collect = submit(engine, batch)

        def collect_late() -> np.ndarray:
            time.sleep(seconds)
            return collect()

        return collect_late

    setattr(ProvenEngine, "submit", submit_slowly)  # noqa: B010 (mypy takes an assignment for an error)


if __name__ == "__main__":
    slow_down(float(sys.argv[1]))
    sys.argv[1] = "worker"
    main()
