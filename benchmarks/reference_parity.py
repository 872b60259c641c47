"""Every stored vector of a probe file against transformers, text by text, in float32.

Extracts the file into a FABRIC_HOME of its own with the command line, then has an environment with torch and
transformers compute the same probes one at a time from the same GGUF file: its own token ids of the text, its last
hidden state. A probe of given or cut token ids is compared from those. Writes results/reference_parity_<set>.json.

usage: FABRIC_PEER_PYTHON=path/to/python python benchmarks/reference_parity.py PROBES [options of fabric extract]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from machine import describe

from io_managers.reading import StoredPartitions, connect, read_hidden_states
from resources.checkpoint import DEFAULT_CHECKPOINT, open_checkpoint
from resources.probe_files import load_probe_set

HERE = Path(__file__).parent
FABRIC = Path(sys.executable).parent / "fabric"
PROBES = """
SELECT probe_id, CASE WHEN t.truncated THEN NULL ELSE text END, t.token_ids
FROM tokenised_batches t JOIN probe_sets p USING (part, probe_id)
"""


def main() -> None:
    """Extracts, computes the reference and writes the result file."""
    probes, options = Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FABRIC_HOME"] = folder
        subprocess.run([FABRIC, "extract", probes, "--name", probes.stem, *options], check=True)
        lake = Path(folder) / "lake"
        probe_set = load_probe_set(Path(folder) / "probes", probes.stem)
        refused: Counter[str] = Counter()
        for shard in probe_set.shards:
            refused.update(r.reason for r in StoredPartitions(lake, (shard.part,)).refusals(shard.part))
        ids, vectors = read_hidden_states(lake=lake)
        with connect(lake) as connection:
            asked = {row[0]: row[1:] for row in connection.execute(PROBES).fetchall()}
        rows = [asked[probe_id] for probe_id in ids["probe_id"]]
        reference, same_ids = reference_vectors(rows, Path(folder))
    errors = np.linalg.norm(vectors - reference, axis=1) / np.linalg.norm(reference, axis=1)
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    cosines = (vectors * reference).sum(axis=1) / norms
    result = describe() | {
        "probes": probes.name,
        "rows": probe_set.n_rows,
        "vectors": len(ids),
        "refused": dict(refused),
        "unaccounted": probe_set.n_rows - len(ids) - refused.total(),
        "token_ids_equal": int(same_ids.sum()),
        "greatest_relative_error": float(errors.max()),
        "median_relative_error": float(np.median(errors)),
        "lowest_cosine": float(cosines.min()),
    }
    target = HERE / "results" / f"reference_parity_{probes.stem}.json"
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def reference_vectors(rows: list[tuple[str | None, list[int]]], folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """float32 [n, dim] of transformers, and bool [n]: whether its token ids are the stored ones."""
    request = folder / "request.json"
    request.write_text(json.dumps(rows))
    gguf = open_checkpoint(DEFAULT_CHECKPOINT).path
    peer = os.environ["FABRIC_PEER_PYTHON"]
    command = [peer, HERE / "reference_peer.py", gguf, request, folder / "reference.npz"]
    subprocess.run(command, check=True)
    with np.load(folder / "reference.npz") as saved:
        return saved["vectors"], saved["same_ids"]


if __name__ == "__main__":
    main()
