from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources import records
from resources.records import (
    PART_KEY,
    WorkItemManifest,
    digest,
    extraction_request,
    partition_digest,
    payload_elements,
    token_hash,
    work_item_digest,
)

fields = st.lists(st.binary(max_size=6), max_size=5)
HASHES = [bytes([i]) * 16 for i in range(3)]
ITEM = WorkItemManifest("set.00000", "set.00000-00000000", 3, 2, 9, 5, b"d" * 16, "tokenizer", b"p" * 8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([b"ab", b"c"], [b"a", b"bc"]),
        ([b"abc"], [b"ab", b"c"]),
        ([b"a", b""], [b"a"]),
        ([b"", b"a"], [b"a", b""]),
        ([], [b""]),
    ],
)
def test_the_same_bytes_in_other_fields_are_another_digest(one, other):
    assert digest(one) != digest(other)


@given(fields, fields)
def test_digests_are_equal_only_for_equal_fields(one, other):
    assert (digest(one) == digest(other)) == (one == other)


@pytest.mark.parametrize(
    ("payload", "dtype", "elements"),
    [
        ([[0x00, 0x00, 0x80, 0x3F, 0x00, 0x00, 0x20, 0xC0]], "float32", np.array([[1, -2.5]], dtype=np.float32)),
        ([[0x00, 0x3C, 0x01, 0x00]], "float16", np.array([[1, 2**-24]], dtype=np.float16)),
        ([[0x80, 0x3F, 0x20, 0xC0, 0x80, 0x7F]], "bfloat16", np.array([[1, -2.5, np.inf]], dtype=np.float32)),
    ],
)
def test_the_elements_of_a_payload_are_little_endian_and_exact(payload, dtype, elements):
    found = payload_elements(np.array(payload, dtype=np.uint8), dtype)
    assert found.dtype == elements.dtype
    np.testing.assert_array_equal(found, elements)


def test_a_token_hash_is_of_the_ids_whatever_their_array():
    ids = np.array([1, 2, 70_000], dtype=np.int32)
    padded = np.array([1, 0, 2, 0, 70_000, 0], dtype=np.int64)
    assert (
        token_hash(ids) == token_hash(ids.astype(np.int64)) == token_hash(padded[::2]) == token_hash(ids.astype(">i4"))
    )
    assert len(token_hash(ids)) == 16


@given(st.lists(st.integers(0, 2**31 - 1), max_size=5), st.lists(st.integers(0, 2**31 - 1), max_size=5))
def test_token_hashes_are_equal_only_for_equal_ids(one, other):
    same = token_hash(np.array(one, dtype=np.int32)) == token_hash(np.array(other, dtype=np.int32))
    assert same == (one == other)


@pytest.mark.parametrize(
    ("probe_ids", "hashes", "places", "truncated"),
    [
        (["a", "bc", "d"], HASHES, [0, 1, 2], [False] * 3),
        (["ab", "c", "e"], HASHES, [0, 1, 2], [False] * 3),
        (["c", "ab", "d"], HASHES, [0, 1, 2], [False] * 3),
        (["ab", "c"], HASHES[:2], [0, 1], [False] * 2),
        (["ab", "c", "d"], HASHES[::-1], [0, 1, 2], [False] * 3),
        (["ab", "c", "d"], HASHES, [0, 1, 1], [False] * 3),
        (["ab", "c", "d\x00"], HASHES, [0, 1, 2], [False] * 3),
        (["ab", "c", "d"], HASHES, [0, 1, 2], [False, True, False]),
    ],
)
def test_a_work_items_digest_tells_every_row_apart(probe_ids, hashes, places, truncated):
    one = work_item_digest(["ab", "c", "d"], HASHES, [0, 1, 2], [False] * 3)
    assert work_item_digest(probe_ids, hashes, places, truncated) != one


def test_a_work_items_digest_needs_every_field_of_every_row():
    whole = (["a", "b", "c"], HASHES, [0, 1, 2], [False] * 3)
    for short in range(4):
        with pytest.raises(ValueError):
            work_item_digest(*(field[:2] if n == short else field for n, field in enumerate(whole)))


@pytest.mark.parametrize(
    "other",
    [
        [ITEM],
        [ITEM, replace(ITEM, work_item_id="set.00000-00000002")],
        [ITEM, replace(ITEM, n_rows=4)],
        [ITEM, replace(ITEM, digest=b"e" * 16)],
        [ITEM, replace(ITEM, tokenizer_id="another")],
        [ITEM, replace(ITEM, probes_digest=b"q" * 8)],
        [ITEM, ITEM, ITEM],
    ],
)
def test_a_partitions_digest_tells_its_work_items_apart(other):
    assert partition_digest(other) != partition_digest([ITEM, ITEM])


@pytest.mark.parametrize("field", ["checkpoint_digest", "graph_version", "tokenizer_id", "tap", "dtype"])
def test_a_model_key_changes_with_each_thing_that_decides_the_numbers(field):
    given_fields = {"checkpoint_digest": "c", "graph_version": "g", "tokenizer_id": "t", "tap": "p", "dtype": "d"}
    assert records.model_key(**given_fields | {field: "another"}) != records.model_key(**given_fields)


def test_a_requests_id_is_a_digest_of_all_that_it_asks():
    asked = {"engine_id": "e", "model_key": "m", "dtype": "float32"}
    others = [
        extraction_request(ITEM, **asked | {"engine_id": "f"}),
        extraction_request(ITEM, **asked | {"model_key": "n"}),
        extraction_request(ITEM, **asked | {"dtype": "float16"}),
        extraction_request(replace(ITEM, digest=b"e" * 16), **asked),
        extraction_request(replace(ITEM, part="set.00001"), **asked),
    ]
    request = extraction_request(ITEM, **asked)
    assert request == extraction_request(ITEM, **asked)
    assert len({request.request_id, *(other.request_id for other in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("key", "fits"),
    [("a", True), ("set.00001", True), ("A-b_c.9", True), ("a" * 128, True)]
    + [(key, False) for key in ("", ".a", "-a", "a b", "a/b", "a:b", "é", "a\n", "a" * 129)],
)
def test_a_partition_key(key, fits):
    assert bool(PART_KEY.fullmatch(key)) == fits
