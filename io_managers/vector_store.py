"""One partition's vectors into the store, checked against what the store itself says of them. No Dagster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from io_managers.contents import stored_content
from io_managers.delta_table import Committed, PartitionWrite, write_partition
from io_managers.errors import StoreError
from io_managers.lineage import checked_batches
from io_managers.reading import StoredPartitions, find_engine, latest_verdict
from io_managers.tables import ATTESTATIONS, HIDDEN_STATES, PROBE_SETS, WORK_ITEMS
from resources.records import Attestation, VectorStream


def write_vectors(lake: Path | str, stream: VectorStream, *, metadata: Mapping[str, str]) -> Committed:
    """Pulls, checks and commits the stream's partition, then closes the stream, whatever happened.

    The probes' digest, manifest, tokenised rows, requests, engine and its newest validation are read from the store,
    never from whoever made the stream. Who computes them is stored before them. What is stored already is not pulled.
    Raises `LineageError`, `StoreError`, or what the stream raised; the table is then as it was.
    """
    part, engine_id = stream.part, stream.engine_id
    stored = StoredPartitions(lake, (part,))
    try:
        if stored_content(lake, WORK_ITEMS, {"part": part}) is None:
            raise StoreError(
                f"work_items of {part} was never materialised, or the partition was withdrawn; register its probes "
                "again if it was, materialise probe_sets and work_items, then hidden_states"
            )
        probes_digest = stored_content(lake, PROBE_SETS, {"part": part})
        manifest = stored.manifest(part)
        batches = checked_batches(
            stream,
            manifest=manifest,
            probes_digest=probes_digest,
            work_items=stored.work_item_rows(part),
            requests=stored.iter_requests(part, engine_id),
            engine=find_engine(lake, engine_id=engine_id),
            verdict=latest_verdict(lake, engine_id),
        )
        write = PartitionWrite(
            scope={"part": part},
            content_digest=stream.input_digest,
            n_rows=sum(item.n_rows for item in manifest),
            batches=lambda: _attested(lake, stream, batches, metadata),
            metadata={**metadata, "engine_id": engine_id, "versions_read": json.dumps(stored.versions())},
            made_of=probes_digest,
        )
        return write_partition(lake, HIDDEN_STATES, write, model_key=stream.model_key)
    finally:
        stream.close()


def _attested(
    lake: Path | str, stream: VectorStream, batches: Iterator[pa.RecordBatch], metadata: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """The batches; before the first, the row of who computed them is stored."""
    stored = False
    for batch in batches:
        if not stored:
            _store_attestation(lake, stream.attestation, metadata)
            stored = True
        yield batch


def _store_attestation(lake: Path | str, attestation: Attestation, metadata: Mapping[str, str]) -> None:
    """Its one row, once: its id is a digest of it."""
    row = {**asdict(attestation), "attestation_id": attestation.attestation_id}
    write_partition(
        lake,
        ATTESTATIONS,
        PartitionWrite(
            scope={"attestation_id": attestation.attestation_id},
            content_digest=bytes.fromhex(attestation.attestation_id),
            n_rows=1,
            batches=lambda: iter([pa.RecordBatch.from_pylist([row], schema=ATTESTATIONS.schema)]),
            metadata=metadata,
        ),
    )
