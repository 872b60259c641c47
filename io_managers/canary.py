"""Vectors that another engine of a model stored, with the tokens that they are of: what a new engine must reproduce.

Contract: only rows whose stored token ids still have the hash that the vector was stored with, and whose payload has
its own. Nothing is written. No Dagster.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from io_managers.stored_rows import data_files, stored_batches, stored_records
from io_managers.tables import ENGINES, EXTRACTION_REQUESTS, HIDDEN_STATES, TOKENISED_BATCHES
from io_managers.vectors import payload_kind, payload_matrix
from resources.records import token_hash

ROWS_LOOKED_AT = 256
"""Rows at the start of a partition among which different sequences are looked for."""


def registered_canary(
    lake: Path | str, model_key: str, *, other_than: str, most: int = 8
) -> tuple[list[np.ndarray], np.ndarray] | None:
    """Up to `most` different sequences (int32 token ids) and their vectors, float32 [n, dim]; None if there are none.

    They are of the first partition, by name, whose vectors of `model_key` come from an engine other than the engine_id
    `other_than`, and whose tokens are still those. Raises `StoreError` for what is damaged.
    """
    others = {e["engine_id"] for e in stored_records(lake, ENGINES, {}) if e["model_key"] == model_key} - {other_than}
    # Of the partitions that another engine was asked for; reading who made each vector would open every file.
    asked = {
        part.removeprefix("part=")
        for file in (data_files(lake, EXTRACTION_REQUESTS, {}) if others else [])
        for part, engine in [file.path.split("/")[:2]]
        if engine.removeprefix("engine_id=") in others
    }
    canaries = (_canary(lake, model_key, part, other_than, most) for part in sorted(asked))
    return next((canary for canary in canaries if canary is not None), None)


def _canary(
    lake: Path | str, model_key: str, part: str, other_than: str, most: int
) -> tuple[list[np.ndarray], np.ndarray] | None:
    rows_of_part = stored_batches(lake, HIDDEN_STATES, {"part": part}, model_key=model_key, rows=ROWS_LOOKED_AT)
    if (batch := next(rows_of_part, None)) is None:
        return None
    vectors = payload_matrix(batch, payload_kind(batch))
    names = ("work_item_id", "row_index", "token_hash", "engine_id")
    wanted: dict[bytes, tuple[int, str, int]] = {}
    for row, (item, index, hashed, engine_id) in enumerate(zip(*(batch[n].to_pylist() for n in names), strict=True)):
        if engine_id != other_than and len(wanted) < most:
            wanted.setdefault(hashed, (row, item, index))
    places = {(item, index): (row, hashed) for hashed, (row, item, index) in wanted.items()}
    sequences: list[np.ndarray] = []
    rows: list[int] = []
    columns = ["work_item_id", "row_index", "token_ids"]
    for tokens in stored_batches(lake, TOKENISED_BATCHES, {"part": part}, columns=columns):
        for at, place in enumerate(zip(*(tokens[n].to_pylist() for n in columns[:2]), strict=True)):
            if place in places:
                row, hashed = places.pop(place)
                ids = tokens["token_ids"][at].values.to_numpy()
                if token_hash(ids) == hashed:
                    sequences.append(ids)
                    rows.append(row)
        if not places:
            break
    return (sequences, vectors[rows].astype(np.float32)) if rows else None
