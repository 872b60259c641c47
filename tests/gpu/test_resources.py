"""What an engine takes of the GPU, and gives back; and that what it computes does not depend on when."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from resources import proof
from resources.engine.cuda_memory import COUNTS, memory_info
from tests.gpu.conftest import LIMITS

BATCHES = 1000
LOADS = 20
SLACK = 8 << 20
"""Bytes that the driver may keep for itself between two loads."""


@pytest.fixture(scope="module")
def engine(engines):
    with proof.load(engines["float16"]) as opened:
        yield opened


def batch(random: np.random.Generator) -> list[np.ndarray]:
    """Sequences of about one length, as many as fit; any length."""
    longest = int(random.integers(1, LIMITS.max_input_len + 1))
    n = int(random.integers(1, min(26, LIMITS.max_num_tokens // longest) + 1))
    return [random.integers(3, 270, random.integers(-(-longest // 2), longest + 1), dtype=np.int32) for _ in range(n)]


def test_no_batch_allocates(engine):
    random = np.random.default_rng(0)
    for _ in range(20):
        engine.extract(batch(random))
    calls, free = COUNTS.allocating_calls, memory_info().free
    for _ in range(BATCHES):
        engine.extract(batch(random))
    assert COUNTS.allocating_calls == calls
    assert memory_info().free >= free


def test_the_same_batch_gives_the_same_bits(engine):
    random = np.random.default_rng(1)
    for _ in range(50):
        sequences = batch(random)
        first = engine.extract(sequences)
        engine.extract(batch(random))
        np.testing.assert_array_equal(engine.extract(sequences), first)


def test_a_thread_that_did_not_open_the_engine_gets_the_same_vectors(engine):
    sequences = batch(np.random.default_rng(2))
    results: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: results.append(engine.extract(sequences)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(results[0], engine.extract(sequences))


def test_nothing_is_left_after_many_loads(engines):
    # The first load brings kernels that the driver keeps.
    proof.load(engines["float16"]).close()
    live, free = COUNTS.live, memory_info().free
    for _ in range(LOADS):
        proof.load(engines["float16"]).close()
    assert COUNTS.live == live
    assert memory_info().free >= free - SLACK
