"""The float32 vectors that `parity.py` compares with: SmolLM2 on ONNX Runtime, on a CPU. No GPU is needed.

The texts are every text field of a JSON Lines file, and each row's fields joined; some minutes for 4,000 of them.

usage: python -m benchmarks.gpu.reference PROBES.jsonl --to reference.npy
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.gpu.common import sequences
from resources.checkpoint import DEFAULT_CHECKPOINT, TokenizerPolicy, open_checkpoint
from resources.engine.build import build_engine
from resources.packing import plan
from resources.proof import load
from resources.records import Limits

LIMITS = Limits(max_batch_size=64, max_num_tokens=2048, max_input_len=512)


def main() -> None:
    """Writes float32 [n, hidden] to the file named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("probes", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    items = sequences(arguments.probes)
    checkpoint = open_checkpoint(DEFAULT_CHECKPOINT)
    rows: list[np.ndarray] = []
    with tempfile.TemporaryDirectory() as folder:
        record = build_engine(checkpoint, checkpoint.tokenizer(TokenizerPolicy()), Path(folder), limits=LIMITS)
        with load(Path(folder) / record.directory) as engine:
            for places in plan((len(ids) for ids in items), LIMITS):
                rows += list(engine.extract([items[i] for i in places]))
                print(f"{len(rows)} of {len(items)}", flush=True)
    np.save(arguments.to, np.stack(rows))


if __name__ == "__main__":
    main()
