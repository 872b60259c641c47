import numpy as np
import pytest

from resources.proof.vectors import decode, distances


def bits(*values: float) -> np.ndarray:
    """bfloat16 bits of values that it holds exactly."""
    return (np.array([values], dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    ("raw", "dtype", "values"),
    [
        (np.array([[1, -2.5]], dtype=np.float32), "float32", [1, -2.5]),
        (np.array([[1, -2.5]], dtype=np.float16), "float16", [1, -2.5]),
        (bits(1, -2.5, 3.0e38), "bfloat16", [1, -2.5, 2.9907e38]),
    ],
)
def test_an_output_is_decoded_from_its_own_dtype(raw, dtype, values):
    np.testing.assert_allclose(decode(raw, dtype).values, [values], rtol=1e-4)


@pytest.mark.parametrize(
    ("raw", "dtype", "non_finite", "denormal"),
    [
        (np.array([[np.inf, -np.inf, np.nan, 1]], dtype=np.float32), "float32", 3, 0),
        (np.array([[1e-40, 0, 1]], dtype=np.float32), "float32", 0, 1),
        (np.array([[6e-8, -6e-5, 1e-4, np.nan]], dtype=np.float16), "float16", 1, 2),
        (np.array([[0x7F80, 0xFFC0, 0x0001, 0x3F80]], dtype=np.uint16), "bfloat16", 2, 1),
    ],
)
def test_infinities_nan_and_denormals_are_counted(raw, dtype, non_finite, denormal):
    vectors = decode(raw, dtype)
    assert (vectors.non_finite, vectors.denormal) == (non_finite, denormal)


def test_a_fingerprint_is_the_sum_of_absolute_values_of_what_is_finite():
    vectors = decode(np.array([[1, -2, 3], [np.inf, -1, np.nan]], dtype=np.float32), "float32")
    assert vectors.fingerprints.tolist() == [6, 1]


def test_distance_is_relative_to_the_larger_vector():
    a = np.array([[3, 4], [0, 0], [1, 0], [1e30, 0]], dtype=np.float32)
    b = np.array([[3, 4], [0, 0], [0, 1], [0.5e30, 0]], dtype=np.float32)
    np.testing.assert_allclose(distances(a, b), [0, 0, 2**0.5, 0.5])
