"""Reading a stored partition back: what does not add up is counted and named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from io_managers.audit import account, scan_vectors
from io_managers.delta_table import PartitionWrite, write_partition
from io_managers.tables import HIDDEN_STATES, REFUSED_PROBES

PART, MODEL = "set.00000", "model"
DIM = 4


def store(lake: Path, vectors: np.ndarray, **columns: list[object]) -> None:
    """Stores rows whose vectors are `vectors` [n, DIM]; `columns` replaces whole columns."""
    n = len(vectors)
    payloads = [row.tobytes() for row in vectors]
    rows: dict[str, list[object]] = {
        "part": [PART] * n,
        "work_item_id": [f"{PART}-00000000"] * n,
        "row_index": list(range(n)),
        "probe_id": [f"p{i}" for i in range(n)],
        "request_id": ["r"] * n,
        "n_tokens": [1] * n,
        "gathered_position": [0] * n,
        "gathered_token_id": [5] * n,
        "truncated": [False] * n,
        "token_hash": [bytes([i] * 16) for i in range(n)],
        "engine_id": ["e"] * n,
        "attestation_id": ["a"] * n,
        "dtype": [str(vectors.dtype)] * n,
        "dim": [DIM] * n,
        "payload_xxh3": [xxhash.xxh3_128_digest(p) for p in payloads],
        "payload": payloads,
    } | columns

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict(rows, schema=HIDDEN_STATES.schema)

    write_partition(lake, HIDDEN_STATES, PartitionWrite({"part": PART}, bytes(16), n, batches, {}), model_key=MODEL)


def refuse(lake: Path, *reasons: str) -> None:
    rows = [
        {
            "part": PART,
            "stage": "probe_sets",
            "probe_id": "",
            "reason": reason,
            "detail": "",
            "source_uri": "u",
            "source_row": i,
        }
        for i, reason in enumerate(reasons)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=REFUSED_PROBES.schema)
    scope = {"part": PART, "stage": "probe_sets"}
    write_partition(lake, REFUSED_PROBES, PartitionWrite(scope, bytes(16), len(rows), lambda: iter([batch]), {}))


VECTORS = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)


@pytest.mark.parametrize(
    ("rows_in", "columns", "balanced", "unaccounted"),
    [
        (5, {}, True, 0),
        (6, {}, False, 1),
        (4, {}, False, -1),
        (5, {"probe_id": ["p0", "p1", "p1"]}, False, 0),
    ],
)
def test_an_account_balances_only_when_every_probe_went_somewhere_once(
    tmp_path: Path, rows_in: int, columns: dict[str, list[object]], balanced: bool, unaccounted: int
) -> None:
    store(tmp_path, VECTORS, **columns)
    refuse(tmp_path, "empty-text", "invalid-json")
    seen = account(tmp_path, PART, model_key=MODEL, rows_in=rows_in)
    assert (seen.balanced, seen.unaccounted) == (balanced, unaccounted)
    assert seen.refused == {("probe_sets", "empty-text"): 1, ("probe_sets", "invalid-json"): 1}


def test_a_partition_that_stored_nothing_is_unaccounted_for(tmp_path: Path) -> None:
    assert account(tmp_path, PART, model_key=MODEL, rows_in=2).unaccounted == 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_good_partition_shows_no_fault(tmp_path: Path, dtype: str) -> None:
    store(tmp_path, VECTORS.astype(dtype))
    seen = scan_vectors(tmp_path, PART, model_key=MODEL)
    assert (seen.rows, seen.non_finite, seen.damaged, seen.shared_vectors, seen.example) == (3, 0, 0, 0, "")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_element_that_is_not_finite_is_found(tmp_path: Path, value: float) -> None:
    vectors = VECTORS.copy()
    vectors[1, 2] = value
    store(tmp_path, vectors)
    seen = scan_vectors(tmp_path, PART, model_key=MODEL)
    assert (seen.non_finite, seen.example) == (1, "p1 is not finite")


def test_bfloat16_bits_of_an_infinity_are_found(tmp_path: Path) -> None:
    bits = np.full((2, DIM), 0x3F80, dtype=np.uint16)
    bits[0, 0] = 0x7F80
    store(tmp_path, bits, dtype=["bfloat16"] * 2, token_hash=[bytes(16)] * 2)
    assert scan_vectors(tmp_path, PART, model_key=MODEL).non_finite == 1


def test_a_payload_without_its_hash_is_found(tmp_path: Path) -> None:
    hashes: list[object] = [xxhash.xxh3_128_digest(row.tobytes()) for row in VECTORS]
    hashes[2] = bytes(16)
    store(tmp_path, VECTORS, payload_xxh3=hashes)
    seen = scan_vectors(tmp_path, PART, model_key=MODEL)
    assert (seen.damaged, seen.example) == (1, "p2 is damaged")


def test_two_token_sequences_with_one_vector_are_found_and_equal_ones_are_not(tmp_path: Path) -> None:
    vectors = VECTORS[[0, 0, 1]]
    store(tmp_path / "different", vectors)
    assert scan_vectors(tmp_path / "different", PART, model_key=MODEL).example == "p0 and p1 share a vector"
    store(tmp_path / "equal", vectors, token_hash=[bytes(16), bytes(16), bytes([1] * 16)])
    assert scan_vectors(tmp_path / "equal", PART, model_key=MODEL).shared_vectors == 0
