"""Reads what `make demo` stored: the matrix, and a DuckDB query that joins vectors back to their probes."""

from __future__ import annotations

import numpy as np

from io_managers.reading import connect, read_hidden_states

PROBES_AND_VECTORS = """
SELECT p.probe_id, p.text, h.n_tokens, h.payload
FROM hidden_states h JOIN probe_sets p USING (part, probe_id)
ORDER BY p.probe_id LIMIT 3
"""


def main() -> None:
    """Prints what is stored: its shape, three probes with their vectors' norms, and the nearest to the first."""
    ids, vectors = read_hidden_states()
    print(f"\n{len(ids):,} vectors of {vectors.shape[1]} {vectors.dtype} elements")
    with connect() as lake:
        for probe_id, text, n_tokens, payload in lake.execute(PROBES_AND_VECTORS).fetchall():
            norm = np.linalg.norm(np.frombuffer(payload, dtype=vectors.dtype))
            print(f"  {probe_id}: {text!r}, {n_tokens} tokens, norm {norm:.2f}")
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = units @ units[0]
    likeness[0] = -1
    nearest = int(likeness.argmax())
    print(f"  nearest to {ids['probe_id'][0]}: {ids['probe_id'][nearest]} (cosine {likeness[nearest]:.4f})")


if __name__ == "__main__":
    main()
