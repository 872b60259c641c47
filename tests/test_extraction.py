"""The stream of one partition's vectors: order, claims, failure, and a puller that stops half-way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from resources import extraction
from resources.attestation import attest
from resources.errors import EngineError
from resources.extraction import PartitionVectors
from resources.packing import PackedBatch
from resources.proof import ProvenEngine, load
from resources.records import WorkItem, WorkItemManifest, extraction_request, token_hash
from tests.zoo import write_engine

PART = "set.00000"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProvenEngine]:
    directory = tmp_path_factory.mktemp("engine") / "right"
    write_engine("exclusive-end", directory)
    with load(directory) as proven:
        yield proven


def work_item(index: int, sequences: list[list[int]], sequence_index: list[int]) -> WorkItem:
    arrays = tuple(np.array(s, dtype=np.int32) for s in sequences)
    return WorkItem(
        part=PART,
        work_item_id=f"{PART}-{index:08d}",
        probe_ids=tuple(f"p{index}.{row}" for row in range(len(sequence_index))),
        sequence_index=np.array(sequence_index, dtype=np.int32),
        sequences=arrays,
        token_hashes=np.array([list(token_hash(s)) for s in arrays], dtype=np.uint8),
        truncated=np.zeros(len(sequence_index), dtype=bool),
    )


ITEMS = [work_item(0, [[5], [6, 7]], [0, 1, 1]), work_item(1, [[8, 9, 10]], [0]), work_item(2, [[11, 12, 13, 14]], [0])]


def stream(engine: ProvenEngine, items: list[WorkItem], *, asked: list[WorkItem] | None = None) -> PartitionVectors:
    requests = {
        item.work_item_id: extraction_request(
            WorkItemManifest(
                PART, item.work_item_id, item.n_rows, len(item.sequences), item.n_tokens, 4, b"", "t", b""
            ),
            engine_id=engine.engine_id,
            model_key=engine.model_key,
            dtype=engine.dtype,
        )
        for item in (items if asked is None else asked)
    }
    return PartitionVectors(
        part=PART,
        engine=engine,
        work_items=lambda: iter(items),
        requests=requests,
        input_digest=bytes(16),
        attestation=attest(engine),
        total_tokens=10,
    )


def test_every_row_gets_the_vector_of_its_own_sequence_in_order(engine: ProvenEngine) -> None:
    states = list(stream(engine, ITEMS))
    assert [s.work_item_id for s in states] == [item.work_item_id for item in ITEMS]
    for item, got in zip(ITEMS, states, strict=True):
        vectors = engine.extract(item.sequences)[item.sequence_index]
        assert got.payload.tobytes() == vectors.tobytes()
        assert list(got.row_index) == list(range(item.n_rows))
        for row, index in enumerate(item.sequence_index):
            fed = item.sequences[index]
            assert got.token_hash[row].tobytes() == token_hash(fed)
            assert (got.gathered_position[row], got.gathered_token_id[row]) == (len(fed) - 1, fed[-1])
            assert got.payload_xxh3[row].tobytes() == xxhash.xxh3_128_digest(got.payload[row].tobytes())


@pytest.mark.parametrize("name", ["model.onnx", "config.json", "tokenizer.json"])
def test_an_engine_that_changed_after_its_proof_fails_before_the_last_batch(tmp_path: Path, name: str) -> None:
    write_engine("exclusive-end", tmp_path)
    given = []
    with load(tmp_path) as changed:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b"\n")
        with pytest.raises(EngineError, match="expected"):
            given.extend(stream(changed, ITEMS))
    assert len(given) == len(ITEMS) - 1


def test_a_work_item_of_many_rows_comes_in_slices(engine: ProvenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "CHUNK_BYTES", 2 * engine.hidden_size * 4)
    pieces = list(stream(engine, [work_item(0, [[5], [6, 7]], [0, 0, 1, 1, 1])]))
    assert [list(p.row_index) for p in pieces] == [[0, 1], [2, 3], [4]]


def test_throughput_counts_the_sequences_that_ran(engine: ProvenEngine) -> None:
    vectors = stream(engine, ITEMS)
    for _ in vectors:
        pass
    seen = vectors.throughput
    assert (seen.sequences, seen.tokens) == (4, 10)
    assert seen.peak_tokens_per_second >= seen.average_tokens_per_second > 0


@pytest.mark.parametrize(
    ("items", "asked", "says"),
    [
        pytest.param(ITEMS, ITEMS[:1], "no extraction request", id="no request"),
        pytest.param([*ITEMS[:1], work_item(1, [[10**6]], [0])], None, "vocabulary", id="token beyond the vocabulary"),
        pytest.param([*ITEMS[:1], work_item(1, [[5] * 500], [0])], None, "limits", id="beyond the limits"),
    ],
)
def test_a_failure_of_the_driving_thread_ends_the_stream_as_itself(
    engine: ProvenEngine, items: list[WorkItem], asked: list[WorkItem] | None, says: str
) -> None:
    vectors = stream(engine, items, asked=asked)
    pulled = []
    with pytest.raises(EngineError, match=says):
        pulled.extend(s.work_item_id for s in vectors)
    assert pulled == [item.work_item_id for item in items[: len(pulled)]]


def test_nothing_runs_before_the_first_pull_and_it_cannot_be_pulled_twice(engine: ProvenEngine) -> None:
    vectors = stream(engine, ITEMS)
    assert vectors.throughput.tokens == 0
    list(vectors)
    with pytest.raises(EngineError, match="pulled twice"):
        list(vectors)


def test_closing_half_way_stops_the_driving_thread(engine: ProvenEngine) -> None:
    vectors = stream(engine, [work_item(i, [[5 + i % 7]], [0]) for i in range(500)])
    next(iter(vectors))
    vectors.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("extraction-")]
    assert vectors.throughput.sequences < 500


def test_a_vector_that_is_not_finite_names_its_probe(engine: ProvenEngine, tmp_path: Path) -> None:
    class Overflowing:
        """The proven engine, with one element of one vector overflowing as half precision would."""

        def __getattr__(self, name: str) -> object:
            return getattr(engine, name)

        def submit(self, batch: PackedBatch) -> Callable[[], np.ndarray]:
            vectors = engine.submit(batch)()
            vectors[-1, 3] = np.inf
            return lambda: vectors

    vectors = stream(Overflowing(), ITEMS[:1])  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"p0\.1.*not finite"):
        list(vectors)
