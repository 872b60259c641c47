"""A partition taken out of the lake is gone from every table, and nothing else is."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from io_managers import removal, tables
from io_managers.contents import stored_contents
from io_managers.errors import StoreError
from io_managers.reading import connect, read_hidden_states
from io_managers.removal import Withdrawn, remove_partition
from io_managers.stored_rows import stored_models
from io_managers.vector_store import write_vectors
from resources.records import Refusal
from tests.io_managers.store import ENGINE, Stream, put, work_items
from tests.io_managers.test_reading import MODEL_KEYS, engine_of, store

GONE, KEPT = "set.000", "set.001"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two partitions, each with vectors of two models and refusals of two stages."""
    for part in (GONE, KEPT):
        for engine in (ENGINE, engine_of("float16")):
            store(tmp_path, part, engine)
        for stage in ("probe_sets", "tokenised_batches"):
            refusal = Refusal(part, stage, "q", "empty-text", "d", "f", 3)
            put(tmp_path, tables.REFUSED_PROBES, [asdict(refusal)], part=part, stage=stage)
    return tmp_path


def rows_by_part(lake: Path) -> dict[tuple[str, str | None], dict[str, int]]:
    counts = {}
    for model_key in stored_models(lake):
        with connect(lake, model_key) as connection:
            for spec in tables.ALL:
                if "part" in spec.replaces:
                    rows = connection.execute(f"SELECT part, count(*) FROM {spec.name} GROUP BY part").fetchall()
                    counts[spec.name, model_key if spec.per_model else None] = dict(rows)
    return counts


def test_a_removed_partition_is_gone_from_every_table_and_the_others_are_not(lake: Path) -> None:
    before = rows_by_part(lake)
    assert len(before) == 7 and all(rows.keys() == {GONE, KEPT} for rows in before.values())

    assert remove_partition(lake, GONE) == Withdrawn(
        GONE, probes=15, vectors=30, rows=sum(rows[GONE] for rows in before.values())
    )

    assert rows_by_part(lake) == {name: {KEPT: rows[KEPT]} for name, rows in before.items()}
    ids, vectors = read_hidden_states(GONE, lake=lake, model_key=ENGINE.model_key)
    assert (len(ids), vectors.shape) == (0, (0, 0))


def test_removing_again_changes_nothing(lake: Path) -> None:
    remove_partition(lake, GONE)
    before = rows_by_part(lake)

    assert remove_partition(lake, GONE).rows == 0
    assert remove_partition(lake, "set.009").rows == 0

    assert rows_by_part(lake) == before


def test_an_interrupted_removal_is_finished_by_the_next(lake: Path, monkeypatch) -> None:
    write, written = removal.write_partition, []

    def interrupted(*args: object, **settings: object) -> object:
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(args)
        return write(*args, **settings)

    monkeypatch.setattr(removal, "write_partition", interrupted)
    with pytest.raises(KeyboardInterrupt):
        remove_partition(lake, GONE)
    monkeypatch.undo()
    half = rows_by_part(lake)
    assert all(GONE not in half["hidden_states", key] for key in (MODEL_KEYS["float32"], MODEL_KEYS["float16"]))
    assert GONE in half["probe_sets", None]

    remove_partition(lake, GONE)

    assert all(rows.keys() == {KEPT} for rows in rows_by_part(lake).values())


def test_vectors_of_a_withdrawn_partition_are_refused_not_stored_as_none(lake: Path) -> None:
    remove_partition(lake, GONE)

    with pytest.raises(StoreError, match="withdrawn"):
        write_vectors(lake, Stream(work_items(GONE), []), metadata={})

    assert GONE not in stored_contents(lake, tables.HIDDEN_STATES, model_key=ENGINE.model_key).content


def test_a_partition_whose_probes_were_all_refused_can_be_withdrawn(lake: Path) -> None:
    """It has no row in any of the tables that it was committed to."""
    put(lake, tables.PROBE_SETS, [], part="set.002")
    assert remove_partition(lake, "set.002").rows == 0
    assert "set.002" not in stored_contents(lake, tables.PROBE_SETS).content


def test_a_removed_partition_can_be_stored_again(lake: Path) -> None:
    remove_partition(lake, GONE)

    store(lake, GONE, replace(ENGINE))

    assert len(read_hidden_states(GONE, lake=lake, model_key=ENGINE.model_key)[0]) == 15
