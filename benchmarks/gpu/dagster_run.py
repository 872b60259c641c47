"""A whole run on the GPU: `fabric extract` over a probe file with the TensorRT backend, in a FABRIC_HOME of its own.

Reports the run's own metadata (average and peak tokens/s), and how every stored vector compares with a reference.

usage: python -m benchmarks.gpu.dagster_run PROBES.jsonl --engines FOLDER [--reference reference.npy]
The engine is the one that the other measurements use. The reference is `reference.py`'s, of the same file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import LIMITS, cosines, report, sequences, smollm2

FABRIC = [sys.executable, "-c", "from fabric_assets.cli import main; main()"]
TOKEN_IDS = "SELECT probe_id, token_ids FROM tokenised_batches"


def main() -> None:
    """Runs it and writes the report; exit 1 where the run failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("probes", type=Path)
    parser.add_argument("--engines", type=Path, required=True)
    parser.add_argument("--text-field", default="question")
    parser.add_argument("--reference", type=Path)
    arguments = parser.parse_args()
    smollm2(arguments.engines)
    with tempfile.TemporaryDirectory() as home:
        os.environ["FABRIC_HOME"] = home
        (Path(home) / "engines").symlink_to(arguments.engines.resolve(), target_is_directory=True)
        started = time.perf_counter()
        options = {
            "--text-field": arguments.text_field,
            "--backend": "tensorrt",
            "--precision": "float16",
            "--max-tokens": LIMITS.max_input_len,
            "--max-batch-tokens": LIMITS.max_num_tokens,
            "--max-batch-size": LIMITS.max_batch_size,
        }
        command = [*FABRIC, "extract", str(arguments.probes), *(str(o) for pair in options.items() for o in pair)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        print(run.stdout[-2000:], run.stderr[-4000:], sep="\n", flush=True)
        if run.returncode:
            sys.exit(f"fabric extract ended with code {run.returncode}; what it said is above")
        result: dict[str, Any] = {"seconds": round(time.perf_counter() - started, 1), "options": options}
        result |= stored(arguments.probes, arguments.reference) | run_metadata()
    report("gpu_dagster_run", result)


def stored(probes: Path, reference: Path | None) -> dict[str, Any]:
    """How many vectors there are, and how far from the reference's."""
    from io_managers.reading import connect, read_hidden_states

    ids, vectors = read_hidden_states()
    found: dict[str, Any] = {"vectors": len(ids), "dim": int(vectors.shape[1])}
    if reference is None:
        return found
    expected = {s.tobytes(): v for s, v in zip(sequences(probes), np.load(reference), strict=True)}
    with connect() as connection:
        tokens = {i: np.array(t, dtype=np.int32).tobytes() for i, t in connection.execute(TOKEN_IDS).fetchall()}
    right = np.stack([expected[tokens[probe_id]] for probe_id in ids["probe_id"]])
    return found | {"least_cosine_to_the_reference": float(cosines(vectors, right).min())}


def run_metadata() -> dict[str, Any]:
    """What the materialisations of `hidden_states` say of themselves, by partition."""
    import dagster as dg

    from fabric_assets.instance import open_instance

    with open_instance() as instance:
        records = instance.fetch_materializations(dg.AssetKey("hidden_states"), limit=100).records
        return {
            f"materialisation of {record.partition_key}": {
                name: value.value
                for name, value in record.asset_materialization.metadata.items()  # type: ignore[union-attr]
                if isinstance(value, dg.FloatMetadataValue | dg.IntMetadataValue | dg.TextMetadataValue)
            }
            for record in records
        }


if __name__ == "__main__":
    main()
