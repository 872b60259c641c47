"""The first rows of a partition's vectors with the tokens that they are of, for people to look at. No Dagster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from io_managers.stored_rows import stored_batches
from io_managers.tables import HIDDEN_STATES, TOKENISED_BATCHES
from io_managers.vectors import payload_kind, payload_matrix


@dataclass(frozen=True)
class SampleRow:
    """One stored vector. Both tables have their rows in one order, so no row is searched for."""

    probe_id: str
    token_ids: np.ndarray
    """int32 [n_tokens]."""
    gathered_position: int
    vector: np.ndarray
    """[dim], float32 or float16."""


def sample_rows(lake: Path | str, part: str, *, model_key: str, most: int = 5) -> list[SampleRow]:
    """The first rows, at most `most`. Raises `StoreError` for a payload that does not have its hash."""
    scope = {"part": part}
    vectors = next(stored_batches(lake, HIDDEN_STATES, scope, model_key=model_key, rows=most), None)
    columns = ["probe_id", "token_ids"]
    tokens = next(stored_batches(lake, TOKENISED_BATCHES, scope, columns=columns, rows=most), None)
    if vectors is None or tokens is None:
        return []
    matrix = payload_matrix(vectors, payload_kind(vectors))
    named = zip(*(tokens[name].to_pylist() for name in columns), strict=True)
    places = zip(vectors["probe_id"].to_pylist(), vectors["gathered_position"].to_pylist(), matrix, strict=True)
    return [
        SampleRow(probe_id, np.array(ids, dtype=np.int32), position, vector)
        for (probe_id, position, vector), (named_id, ids) in zip(places, named, strict=False)
        if probe_id == named_id
    ]
