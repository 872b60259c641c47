"""What a second engine of a model is compared with: vectors of another one and the tokens that they are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from io_managers import tables
from io_managers.canary import registered_canary
from io_managers.errors import StoreError
from io_managers.reading import read_hidden_states
from tests.io_managers.store import ENGINE, PART, put, spoil_vector, token_rows, work_items
from tests.io_managers.test_reading import MODEL_KEYS, engine_of, store


@pytest.mark.parametrize("dtype", MODEL_KEYS)
@pytest.mark.parametrize("most", [3, 100])
def test_each_sequence_comes_once_with_the_vector_stored_for_it(tmp_path: Path, dtype: str, most: int) -> None:
    engine = engine_of(dtype)
    store(tmp_path, engine=engine)
    _, stored = read_hidden_states(PART, lake=tmp_path)
    items = work_items()
    expected = [s.tolist() for item in items for s in item.sequences][:most]
    # The second row of a work item is of the tokens of its first.
    rows = [row for row in range(15) if row % 5 != 1][:most]

    sequences, vectors = registered_canary(tmp_path, engine.model_key, other_than="new", most=most)

    assert [s.tolist() for s in sequences] == expected
    assert {s.dtype for s in sequences} == {np.dtype(np.int32)}
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, stored[rows].astype(np.float32))


@pytest.mark.parametrize(
    ("model_key", "other_than"), [(ENGINE.model_key, ENGINE.engine_id), ("x" * 32, "new")], ids=["own", "no table"]
)
def test_there_is_none_without_vectors_of_another_engine(tmp_path: Path, model_key: str, other_than: str) -> None:
    store(tmp_path)
    assert registered_canary(tmp_path, model_key, other_than=other_than) is None


def test_rows_whose_tokens_changed_since_are_left_out(tmp_path: Path) -> None:
    store(tmp_path)
    others = work_items(seed=7)
    put(tmp_path, tables.TOKENISED_BATCHES, token_rows([work_items()[0], *others[1:]]), part=PART)

    sequences, vectors = registered_canary(tmp_path, ENGINE.model_key, other_than="new", most=100)

    assert [s.tolist() for s in sequences] == [s.tolist() for s in work_items()[0].sequences]
    assert len(vectors) == len(sequences)


def test_a_partition_whose_tokens_all_changed_gives_way_to_the_next(tmp_path: Path) -> None:
    for part in ("set.000", "set.001"):
        store(tmp_path, part)
    put(tmp_path, tables.TOKENISED_BATCHES, token_rows(work_items("set.000", seed=7)), part="set.000")

    sequences, _ = registered_canary(tmp_path, ENGINE.model_key, other_than="new", most=1)

    assert sequences[0].tolist() == work_items("set.001")[0].sequences[0].tolist()


def test_a_damaged_vector_is_no_canary(tmp_path: Path) -> None:
    store(tmp_path)
    spoil_vector(tmp_path, work_items()[0].probe_ids[0])

    with pytest.raises(StoreError, match="was stored with"):
        registered_canary(tmp_path, ENGINE.model_key, other_than="new")
