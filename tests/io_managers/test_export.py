"""Exports read back with the libraries that people use, and say what they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from io_managers import export
from io_managers.errors import StoreError
from io_managers.reading import export_partition, read_hidden_states
from tests.io_managers.store import PART, spoil_vector, work_items
from tests.io_managers.test_reading import MODEL_KEYS, engine_of, store

PROBE_IDS = [probe for item in work_items() for probe in item.probe_ids]


@pytest.fixture(params=list(MODEL_KEYS))
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def lake(tmp_path: Path, dtype: str, monkeypatch) -> Path:
    """A lake of one partition in one dtype, exported in several batches."""
    monkeypatch.setattr(export, "ROWS_A_BATCH", 4)
    store(tmp_path / "lake", engine=engine_of(dtype))
    return tmp_path / "lake"


def check_header(header: dict[str, object], dtype: str, file_dtype: str) -> None:
    assert header == {
        "part": PART,
        "model_key": MODEL_KEYS[dtype],
        "engine_ids": [dtype],
        "shape": [15, 8],
        "dtype": dtype,
        "file_dtype": file_dtype,
        "byte_order": "little",
        "tap": "final_norm",
        "normalised": True,
        "position_rule": "last_token",
    }


def check_ids(path: Path, dtype: str, file_dtype: str) -> None:
    table = pq.read_table(path)
    assert table["probe_id"].to_pylist() == PROBE_IDS
    check_header(json.loads(table.schema.metadata[b"fabric"]), dtype, file_dtype)


def test_npy(lake: Path, dtype: str) -> None:
    path = lake.parent / "out" / "vectors.npy"

    assert export_partition(PART, path, lake=lake) == 15

    _, vectors = read_hidden_states(PART, lake=lake)
    seen = np.load(path)
    assert seen.dtype == vectors.dtype
    assert np.array_equal(seen, vectors)
    assert np.array_equal(np.load(path, mmap_mode="r"), vectors)
    check_ids(path.with_name("vectors.npy.ids.parquet"), dtype, "float32" if dtype == "bfloat16" else dtype)


def test_safetensors(lake: Path, dtype: str) -> None:
    path = lake.parent / "vectors.safetensors"

    assert export_partition(PART, path, lake=lake) == 15

    _, bits = read_hidden_states(PART, lake=lake, as_bits=True)
    with safe_open(path, framework="numpy") as file:
        check_header(json.loads(file.metadata()["fabric"]), dtype, dtype)
        tensor = file.get_slice("hidden_states")
        assert tensor.get_shape() == [15, 8]
        assert tensor.get_dtype() == {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
        if dtype != "bfloat16":
            assert file.get_tensor("hidden_states").tobytes() == bits.tobytes()
    assert path.read_bytes().endswith(bits.tobytes())
    check_ids(path.with_name("vectors.safetensors.ids.parquet"), dtype, dtype)


def test_parquet(lake: Path, dtype: str) -> None:
    path = lake.parent / "vectors.parquet"

    assert export_partition(PART, path, lake=lake) == 15

    _, bits = read_hidden_states(PART, lake=lake, as_bits=True)
    assert b"".join(pq.read_table(path)["payload"].to_pylist()) == bits.tobytes()
    check_ids(path, dtype, dtype)


@pytest.mark.parametrize("dtype", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("part", "name", "seen"),
    [(PART, "vectors.csv", "vectors.csv"), ("set.009", "vectors.npy", "set.009")],
    ids=["an unknown suffix", "a partition without vectors"],
)
def test_what_cannot_be_exported_is_refused(lake: Path, part: str, name: str, seen: str) -> None:
    with pytest.raises(StoreError) as caught:
        export_partition(part, lake.parent / name, lake=lake)

    assert seen in str(caught.value)
    assert not (lake.parent / name).exists()


@pytest.mark.parametrize("dtype", ["float32"], indirect=True)
@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".parquet"])
def test_a_failed_export_leaves_the_earlier_file(lake: Path, suffix: str) -> None:
    out = lake.parent / "out"
    export_partition(PART, out / f"v{suffix}", lake=lake)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    [file] = lake.glob("hidden_states/*/part=*/*.parquet")
    # The last bytes of the rows, not the footer: the failure comes half-way.
    data = bytearray(file.read_bytes())
    data[len(data) // 2 - 200 : len(data) // 2] = bytes(200)
    file.write_bytes(data)

    with pytest.raises(StoreError):
        export_partition(PART, out / f"v{suffix}", lake=lake)

    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


@pytest.mark.parametrize("dtype", ["float32"], indirect=True)
@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".parquet"])
def test_a_damaged_vector_is_not_exported(lake: Path, suffix: str) -> None:
    spoil_vector(lake, PROBE_IDS[9], engine=engine_of("float32"))

    with pytest.raises(StoreError, match=PROBE_IDS[9]):
        export_partition(PART, lake.parent / f"v{suffix}", lake=lake)

    assert not (lake.parent / f"v{suffix}").exists()
