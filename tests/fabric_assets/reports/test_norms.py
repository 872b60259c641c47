"""Norms counted in passing are those of the vectors, and the histogram leaves none out."""

from __future__ import annotations

import numpy as np
import pytest

from fabric_assets.reports.norms import Norms


def payload_of(vectors: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (vectors.view(np.uint32) >> 16).astype("<u2").view(np.uint8).reshape(len(vectors), vectors.shape[1] * 2)
    elements = vectors.astype({"float32": "<f4", "float16": "<f2"}[dtype])
    return elements.view(np.uint8).reshape(len(vectors), vectors.shape[1] * elements.itemsize)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_norms_are_those_of_the_vectors_in_every_dtype(dtype: str, tolerance: float) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    norms = Norms()
    for start in range(0, 300, 70):
        norms.add(payload_of(vectors[start : start + 70], dtype), dtype)
    expected = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert norms.vectors == 300
    np.testing.assert_allclose(
        (norms.mean, norms.least, norms.greatest), (expected.mean(), expected.min(), expected.max()), rtol=tolerance
    )
    bins = norms.histogram()
    assert sum(b.vectors for b in bins) == 300
    assert (bins[0].least, bins[-1].greatest) == (norms.least, norms.greatest)
    # A bin may differ from an exact one by what lies within a step of its edges.
    exact, _ = np.histogram(expected, bins=[b.least for b in bins] + [bins[-1].greatest])
    assert np.abs(np.cumsum([b.vectors for b in bins]) - np.cumsum(exact)).max() <= 15


@pytest.mark.parametrize(
    ("vectors", "bins"),
    [
        (np.zeros((0, 4)), []),
        (np.zeros((3, 4)), [(0.0, 0.0, 3)]),
        (np.ones((2, 4)), [(2.0, 2.0, 2)]),
        (np.full((1, 4), 60000.0), [(120000.0, 120000.0, 1)]),
    ],
    ids=["none", "zeros", "one norm", "a square beyond float16"],
)
def test_the_ends_of_what_can_be_counted(vectors: np.ndarray, bins: list[tuple[float, float, int]]) -> None:
    norms = Norms()
    norms.add(payload_of(vectors.astype(np.float32), "float16"), "float16")
    assert [(b.least, b.greatest, b.vectors) for b in norms.histogram()] == [
        (pytest.approx(least, rel=1e-3), pytest.approx(greatest, rel=1e-3), n) for least, greatest, n in bins
    ]
