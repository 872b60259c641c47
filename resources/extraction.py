"""Work items through a proven engine -> one partition's vectors, as a stream that whoever stores them pulls.

Contract: `PartitionVectors` is a `records.VectorStream`. Nothing runs before the first pull. One thread of its own
drives the engine and stays at most `QUEUED_BATCHES` ahead of the puller, so memory does not grow with the partition.
What it says of a row (token hash, gathered token, payload hash) comes from the arrays that were fed and copied out,
never from the store's columns: the lineage check compares the two.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import xxhash

from resources.errors import EngineError
from resources.proof import ProvenEngine
from resources.records import ITEM_SIZE, Attestation, ExtractionRequest, HiddenStates, WorkItem, token_hash

QUEUED_BATCHES = 2
CHUNK_BYTES = 8 << 20
"""Most payload bytes of one `HiddenStates`; a work item with many equal probes comes in several."""
PEAK_WINDOW_SECONDS = 10.0
PROGRESS_SECONDS = 5.0

logger = logging.getLogger("fabric.extraction")


@dataclass(frozen=True)
class Throughput:
    """What was computed, and how fast. Tokens are those of the distinct sequences, which is what the engine ran."""

    sequences: int
    tokens: int
    seconds: float
    """From the first batch's start to the last batch's end, waiting for the store included."""
    average_tokens_per_second: float
    peak_tokens_per_second: float
    """Over the best `PEAK_WINDOW_SECONDS`; the average where the run was shorter."""


class PartitionVectors:
    """The vectors of one partition, in the order of its work items."""

    def __init__(
        self,
        *,
        part: str,
        engine: ProvenEngine,
        work_items: Callable[[], Iterator[WorkItem]],
        requests: Mapping[str, ExtractionRequest],
        input_digest: bytes,
        attestation: Attestation,
        total_tokens: int,
    ) -> None:
        """`requests` maps a work item's id to its request; `total_tokens` serves progress only."""
        self.part = part
        self.model_key = engine.model_key
        self.engine_id = engine.engine_id
        self.dtype = engine.dtype
        self.dim = engine.hidden_size
        self.input_digest = input_digest
        self.attestation = attestation
        self._engine = engine
        self._work_items = work_items
        self._requests = requests
        self._meter = _Meter(part, total_tokens)
        self._queue: queue.Queue[HiddenStates | None] = queue.Queue(maxsize=QUEUED_BATCHES)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def throughput(self) -> Throughput:
        """So far; final once the stream has ended."""
        return self._meter.throughput()

    def __iter__(self) -> Iterator[HiddenStates]:
        if self._thread is not None:
            raise EngineError(f"the vectors of {self.part} were pulled twice; open a new stream to extract again")
        self._thread = threading.Thread(target=self._drive, name=f"extraction-{self.part}", daemon=True)
        self._thread.start()
        while (states := self._queue.get()) is not None:
            yield states
        self._thread.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stops the driving thread and waits for it; the engine stays open."""
        self._stop.set()
        if self._thread is None:
            return
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def _drive(self) -> None:
        try:
            for item, vectors in self._computed():
                for states in self._described(item, vectors):
                    self._put(states)
                    if self._stop.is_set():
                        return
        except BaseException as error:
            self._error = error
        finally:
            self._put(None)

    def _put(self, states: HiddenStates | None) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(states, timeout=0.1)
                return
            except queue.Full:
                continue

    def _computed(self) -> Iterator[tuple[WorkItem, np.ndarray]]:
        """Each work item with the vectors of its sequences.

        A batch is packed while the one before it runs, and runs while that one's vectors are hashed and handed on.
        """
        running: tuple[WorkItem, Callable[[], np.ndarray]] | None = None
        for item in self._work_items():
            if item.work_item_id not in self._requests:
                raise EngineError(
                    f"work item {item.work_item_id} has no extraction request for engine {self.engine_id}; "
                    "materialise extraction_requests for this partition again"
                )
            batch = self._engine.pack(item.sequences)
            done = running and self._collected(*running)
            self._meter.begin()
            running = item, self._engine.submit(batch)
            if done:
                yield done
        if running:
            last = self._collected(*running)
            # Nothing is stored of a stream that fails before its end.
            self._engine.require_unchanged()
            yield last

    def _collected(self, item: WorkItem, collect: Callable[[], np.ndarray]) -> tuple[WorkItem, np.ndarray]:
        vectors = collect()
        self._meter.end(len(item.sequences), item.n_tokens)
        return item, vectors

    def _described(self, item: WorkItem, vectors: np.ndarray) -> Iterator[HiddenStates]:
        _require_finite(vectors, item, self.dtype)
        payload = np.ascontiguousarray(vectors).view(np.uint8).reshape(len(vectors), self.dim * ITEM_SIZE[self.dtype])
        payload_hashes = _rows_of_digests([xxhash.xxh3_128_digest(row.data) for row in payload])
        token_hashes = _rows_of_digests([token_hash(s) for s in item.sequences])
        lengths = np.array([len(s) for s in item.sequences], dtype=np.int32)
        last_tokens = np.array([s[-1] for s in item.sequences], dtype=np.int32)
        rows = max(1, CHUNK_BYTES // payload.shape[1])
        for start in range(0, item.n_rows, rows):
            of = item.sequence_index[start : start + rows]
            yield HiddenStates(
                part=self.part,
                work_item_id=item.work_item_id,
                request_id=self._requests[item.work_item_id].request_id,
                engine_id=self.engine_id,
                dtype=self.dtype,
                dim=self.dim,
                row_index=np.arange(start, start + len(of), dtype=np.int32),
                token_hash=token_hashes[of],
                n_tokens=lengths[of],
                gathered_position=lengths[of] - np.int32(1),
                gathered_token_id=last_tokens[of],
                payload=payload[of],
                payload_xxh3=payload_hashes[of],
            )


class _Meter:
    """Counts tokens as batches end, and logs progress every `PROGRESS_SECONDS`."""

    def __init__(self, part: str, total_tokens: int) -> None:
        self._part, self._total = part, total_tokens
        self._sequences = self._tokens = 0
        self._started = self._ended = self._logged = 0.0
        self._window: deque[tuple[float, int]] = deque()
        self._in_window = 0
        self._peak = 0.0

    def begin(self) -> None:
        if not self._started:
            self._started = self._logged = time.monotonic()

    def end(self, sequences: int, tokens: int) -> None:
        now = self._ended = time.monotonic()
        self._sequences += sequences
        self._tokens += tokens
        self._window.append((now, tokens))
        self._in_window += tokens
        while now - self._window[0][0] >= PEAK_WINDOW_SECONDS:
            self._in_window -= self._window.popleft()[1]
        if now - self._started >= PEAK_WINDOW_SECONDS:
            self._peak = max(self._peak, self._in_window / PEAK_WINDOW_SECONDS)
        if now - self._logged >= PROGRESS_SECONDS:
            self._logged = now
            rate = self._tokens / (now - self._started)
            logger.info(
                "%s: %s of %s tokens (%.0f %%), %s tokens/s, about %.0f s left",
                self._part,
                f"{self._tokens:,}",
                f"{self._total:,}",
                100 * self._tokens / max(1, self._total),
                f"{rate:,.0f}",
                max(0, self._total - self._tokens) / rate,
            )

    def throughput(self) -> Throughput:
        seconds = self._ended - self._started
        average = self._tokens / seconds if seconds > 0 else 0.0
        return Throughput(
            sequences=self._sequences,
            tokens=self._tokens,
            seconds=seconds,
            average_tokens_per_second=average,
            peak_tokens_per_second=max(self._peak, average),
        )


def _require_finite(vectors: np.ndarray, item: WorkItem, dtype: str) -> None:
    finite = (vectors & 0x7F80) != 0x7F80 if dtype == "bfloat16" else np.isfinite(vectors)
    if finite.all():
        return
    sequence = int(np.flatnonzero(~finite.all(axis=1))[0])
    row = int(np.flatnonzero(item.sequence_index == sequence)[0])
    raise EngineError(
        f"the vector of probe {item.probe_ids[row]!r} (work item {item.work_item_id}, row {row}) has "
        f"{int((~finite[sequence]).sum())} elements that are not finite; expected none; "
        f"build the engine with a wider precision than {dtype}, or take the probe out of its file"
    )


def _rows_of_digests(digests: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), 16)
