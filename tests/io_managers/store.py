"""A small real lake for the tests: tokenised partitions, an engine with its report, and streams of vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from io_managers import tables
from io_managers.delta_table import PartitionWrite, write_partition
from io_managers.open_tables import open_table, stored_files, table_path
from io_managers.stored_rows import stored_records
from io_managers.tables import TableSpec
from resources.records import (
    ITEM_SIZE,
    Attestation,
    EngineRecord,
    EngineVerdict,
    HiddenStates,
    Limits,
    WorkItem,
    WorkItemManifest,
    digest,
    extraction_request,
    partition_digest,
    token_hash,
    work_item_digest,
)

PART = "set.000"
DIM = 8

ENGINE = EngineRecord(
    engine_id="e" * 32,
    model_key="m" * 32,
    directory="eeee",
    backend="onnxruntime",
    precision="float32",
    hidden_size=DIM,
    vocab_size=1000,
    limits=Limits(64, 4096, 512),
    checkpoint_digest="c" * 32,
    tokenizer_id="t" * 32,
    graph_version="1",
    versions={"onnxruntime": "1"},
)

VERDICT = EngineVerdict(
    report_id="r1",
    engine_id=ENGINE.engine_id,
    model_key=ENGINE.model_key,
    verdict="proved",
    convention="exclusive_end",
    decided_by="only-consistent",
    reason="proved",
    evidence_json="{}",
)


def attestation_of(engine: EngineRecord) -> Attestation:
    return Attestation(
        engine_id=engine.engine_id,
        model_key=engine.model_key,
        contract="",
        worker="host-1",
        device="a processor",
        validated_at="2025-01-01T00:00:00.000+00:00",
        report_xxh3="0" * 32,
    )


def work_items(part: str = PART, *, items: int = 3, rows: int = 5, seed: int = 0) -> list[WorkItem]:
    """Work items whose second row has the tokens of the first."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(items):
        sequences = tuple(rng.integers(0, 1000, rng.integers(1, 9)).astype(np.int32) for _ in range(rows - 1))
        made.append(
            WorkItem(
                part=part,
                work_item_id=f"{part}-{number:08d}",
                probe_ids=tuple(f"{part}/{number}/{row}é" for row in range(rows)),
                sequence_index=np.array([0, *range(rows - 1)], dtype=np.int32),
                sequences=sequences,
                token_hashes=np.frombuffer(b"".join(map(token_hash, sequences)), dtype=np.uint8).reshape(-1, 16),
                truncated=np.arange(rows) % 2 == 1,
            )
        )
    return made


def probe_rows(items: Sequence[WorkItem]) -> list[dict[str, Any]]:
    """The probes that the work items are made of, with the tokens given."""
    probes = [(item, probe_id, item.sequences[at]) for item in items for probe_id, at in _places(item)]
    return [
        {
            "part": item.part,
            "probe_id": probe_id,
            "text": None,
            "token_ids": sequence.tolist(),
            "source_uri": "f",
            "source_row": row,
        }
        for row, (item, probe_id, sequence) in enumerate(probes)
    ]


def manifest_of(items: Sequence[WorkItem]) -> list[WorkItemManifest]:
    # As `contents.stored_content` gives it for what `put` stores.
    probes_digest = (int.from_bytes(_content(probe_rows(items))[:8], "little") >> 1).to_bytes(8, "little")
    return [
        WorkItemManifest(
            part=item.part,
            work_item_id=item.work_item_id,
            n_rows=item.n_rows,
            n_sequences=len(item.sequences),
            n_tokens=item.n_tokens,
            max_tokens=max(map(len, item.sequences)),
            digest=work_item_digest(
                item.probe_ids,
                [item.token_hashes[i].tobytes() for i in item.sequence_index],
                item.sequence_index.tolist(),
                item.truncated.tolist(),
            ),
            tokenizer_id=ENGINE.tokenizer_id,
            probes_digest=probes_digest,
        )
        for item in items
    ]


def token_rows(items: Sequence[WorkItem]) -> list[dict[str, Any]]:
    return [
        {
            "part": item.part,
            "work_item_id": item.work_item_id,
            "row_index": row,
            "sequence_index": int(index),
            "probe_id": item.probe_ids[row],
            "n_tokens": len(item.sequences[index]),
            "truncated": bool(item.truncated[row]),
            "token_hash": item.token_hashes[index].tobytes(),
            "token_ids": item.sequences[index].tolist(),
        }
        for item in items
        for row, index in enumerate(item.sequence_index)
    ]


def put(lake: Path, spec: TableSpec, rows: Sequence[dict[str, Any]], **scope: str) -> None:
    """Stores rows as they are, whether or not they make sense."""
    batch = pa.RecordBatch.from_pylist(list(rows), schema=spec.schema)
    write_partition(lake, spec, PartitionWrite(scope, _content(rows), len(rows), lambda: iter([batch]), {}))


def put_engine(lake: Path, engine: EngineRecord = ENGINE, *, run_id: str = "run", second: int = 0) -> None:
    row = asdict(engine) | asdict(engine.limits) | {"versions": "{}", "run_id": run_id, "built_at": _at(second)}
    put(lake, tables.ENGINES, [row], engine_id=engine.engine_id)


def put_verdict(lake: Path, verdict: EngineVerdict = VERDICT, *, second: int = 0) -> None:
    row = asdict(verdict) | {"evidence": verdict.evidence_json, "run_id": "run", "validated_at": _at(second)}
    put(lake, tables.ENGINE_VALIDATION_REPORTS, [row], report_id=verdict.report_id)


def put_requests(lake: Path, items: Sequence[WorkItem], engine: EngineRecord = ENGINE, **changes: Any) -> None:
    requests = [
        replace(
            extraction_request(m, engine_id=engine.engine_id, model_key=engine.model_key, dtype=engine.precision),
            **changes,
        )
        for m in manifest_of(items)
    ]
    put(lake, tables.EXTRACTION_REQUESTS, [asdict(r) for r in requests], part=items[0].part, engine_id=engine.engine_id)


def put_upstream(lake: Path, items: Sequence[WorkItem], engine: EngineRecord = ENGINE) -> None:
    """All that the vectors of a partition need to be stored."""
    part = items[0].part
    put(lake, tables.PROBE_SETS, probe_rows(items), part=part)
    put(lake, tables.TOKENISED_BATCHES, token_rows(items), part=part)
    put(lake, tables.WORK_ITEMS, [asdict(m) for m in manifest_of(items)], part=part)
    put_engine(lake, engine)
    put_verdict(lake, replace(VERDICT, engine_id=engine.engine_id, model_key=engine.model_key))
    put_requests(lake, items, engine)


def vectors_of(items: Sequence[WorkItem], engine: EngineRecord = ENGINE, *, seed: int = 1) -> list[HiddenStates]:
    """What a right engine of the record's dtype and size gives: one chunk a work item, made up numbers."""
    rng = np.random.default_rng(seed)
    width = engine.hidden_size * ITEM_SIZE[engine.precision]
    chunks = []
    for item, row in zip(items, manifest_of(items), strict=True):
        request = extraction_request(
            row, engine_id=engine.engine_id, model_key=engine.model_key, dtype=engine.precision
        )
        lengths = np.array([len(s) for s in item.sequences], dtype=np.int32)
        # Small exponents, so that no payload is an infinity or NaN in any dtype.
        payload = (rng.integers(0, 256, (len(lengths), width)) & 0x3B).astype(np.uint8)
        hashes = b"".join(xxhash.xxh3_128_digest(p.tobytes()) for p in payload)
        of = item.sequence_index
        chunks.append(
            HiddenStates(
                part=item.part,
                work_item_id=item.work_item_id,
                request_id=request.request_id,
                engine_id=engine.engine_id,
                dtype=engine.precision,
                dim=engine.hidden_size,
                row_index=np.arange(item.n_rows, dtype=np.int32),
                token_hash=item.token_hashes[of],
                n_tokens=lengths[of],
                gathered_position=lengths[of] - np.int32(1),
                gathered_token_id=np.array([s[-1] for s in item.sequences], dtype=np.int32)[of],
                payload=payload[of],
                payload_xxh3=np.frombuffer(hashes, dtype=np.uint8).reshape(-1, 16)[of],
            )
        )
    return chunks


def rows_of(chunk: HiddenStates, index: Any) -> HiddenStates:
    """The chunk with only these of its rows, in this order."""
    names = (
        "row_index",
        "token_hash",
        "n_tokens",
        "gathered_position",
        "gathered_token_id",
        "payload",
        "payload_xxh3",
    )
    return replace(chunk, **{name: getattr(chunk, name)[index] for name in names})


@dataclass
class Stream:
    """A `records.VectorStream` of ready-made chunks; `failure` is raised after the last one."""

    items: Sequence[WorkItem]
    chunks: Sequence[HiddenStates]
    engine: EngineRecord = ENGINE
    failure: BaseException | None = None
    pulled: int = 0
    closed: bool = False
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.part = self.items[0].part
        self.model_key = self.engine.model_key
        self.engine_id = self.engine.engine_id
        self.dtype = self.engine.precision
        self.dim = self.engine.hidden_size
        self.input_digest = partition_digest(manifest_of(self.items))
        self.attestation = attestation_of(self.engine)
        vars(self).update(self.changes)

    def __iter__(self) -> Iterator[HiddenStates]:
        for chunk in self.chunks:
            self.pulled += 1
            yield chunk
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.closed = True


def stored_state(lake: Path, spec: TableSpec, model_key: str | None = None) -> tuple[int, list[str]] | None:
    """The version and files of a table; None where there is none. Equal before and after: nothing was stored."""
    path = table_path(lake, spec, model_key)
    table = open_table(path)
    on_disk = sorted(str(p.relative_to(path)) for p in path.rglob("*.parquet*")) if path.is_dir() else []
    assert table is None or {f.path for f in stored_files(table, {})} <= set(on_disk)
    return None if table is None else (table.version(), on_disk)


def flip_a_bit(file: Path, at: int | None = None) -> None:
    """Changes one bit of the byte `at`, by default one in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    file.write_bytes(data)


def spoil_vector(lake: Path, probe_id: str, *, part: str = PART, engine: EngineRecord = ENGINE) -> None:
    """Stores the partition's vectors again with one bit of one payload changed; its files' checksums are right."""
    spec = tables.HIDDEN_STATES
    rows = list(stored_records(lake, spec, {"part": part}, model_key=engine.model_key))
    for row in rows:
        if row["probe_id"] == probe_id:
            row["payload"] = bytes([row["payload"][0] ^ 1]) + row["payload"][1:]
    batch = pa.RecordBatch.from_pylist(rows, schema=spec.schema)
    write = PartitionWrite({"part": part}, digest([b"spoilt"]), len(rows), lambda: iter([batch]), {})
    write_partition(lake, spec, write, model_key=engine.model_key)


def _places(item: WorkItem) -> Iterator[tuple[str, int]]:
    return zip(item.probe_ids, item.sequence_index.tolist(), strict=True)


def _content(rows: Sequence[dict[str, Any]]) -> bytes:
    return digest(repr(row).encode() for row in rows)


def _at(second: int) -> datetime:
    return datetime(2025, 1, 1, 0, 0, second, tzinfo=UTC)
