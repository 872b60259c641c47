"""The lake's tables: one `TableSpec` each, with its Arrow schema and what one write of it replaces.

Contract: every column is NOT NULL unless it says otherwise; unsigned and half types never appear, since Delta has none.
`replaces` names the columns that say which rows a write replaces. They are the table's partition columns too, always: a
write then owns whole files, so it touches, conflicts with and is verified against nothing but its own earlier rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class TableSpec:
    """One table of the lake. A `per_model` table has a folder of its own for each `model_key`."""

    name: str
    schema: pa.Schema
    replaces: tuple[str, ...]
    per_model: bool = False

    def rows_of(self, records: Sequence[object]) -> pa.RecordBatch:
        """The records as rows: each column is the attribute of its name."""
        arrays = [pa.array([getattr(r, f.name) for r in records], type=f.type) for f in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


_TEXT, _INT, _LONG, _FLAG, _BYTES = pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.binary()
_IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_MESSAGE = pa.struct([_column("role", _TEXT), _column("content", _TEXT)])

PROBE_SETS = TableSpec(
    name="probe_sets",
    replaces=("part",),
    schema=pa.schema(
        [
            _column("part", _TEXT),
            _column("probe_id", _TEXT),
            _column("text", _TEXT, nullable=True),
            _column("token_ids", _IDS, nullable=True),
            _column("source_uri", _TEXT),
            _column("source_row", _LONG),
            _column("messages", pa.list_(_column("element", _MESSAGE)), nullable=True),
        ]
    ),
)

TOKENISED_BATCHES = TableSpec(
    name="tokenised_batches",
    replaces=("part",),
    schema=pa.schema(
        [
            _column("part", _TEXT),
            _column("work_item_id", _TEXT),
            _column("row_index", _INT),
            _column("sequence_index", _INT),
            _column("probe_id", _TEXT),
            _column("n_tokens", _INT),
            _column("truncated", _FLAG),
            _column("token_hash", _BYTES),
            _column("token_ids", _IDS),
        ]
    ),
)

WORK_ITEMS = TableSpec(
    name="work_items",
    replaces=("part",),
    schema=pa.schema(
        [
            _column("part", _TEXT),
            _column("work_item_id", _TEXT),
            _column("n_rows", _INT),
            _column("n_sequences", _INT),
            _column("n_tokens", _INT),
            _column("max_tokens", _INT),
            _column("digest", _BYTES),
            _column("tokenizer_id", _TEXT),
            _column("probes_digest", _BYTES),
        ]
    ),
)

EXTRACTION_REQUESTS = TableSpec(
    name="extraction_requests",
    replaces=("part", "engine_id"),
    schema=pa.schema(
        [
            _column("part", _TEXT),
            _column("request_id", _TEXT),
            _column("work_item_id", _TEXT),
            _column("engine_id", _TEXT),
            _column("model_key", _TEXT),
            _column("tap", _TEXT),
            _column("normalised", _FLAG),
            _column("position_rule", _TEXT),
            _column("dtype", _TEXT),
            _column("byte_order", _TEXT),
        ]
    ),
)

HIDDEN_STATES = TableSpec(
    name="hidden_states",
    per_model=True,
    replaces=("part",),
    schema=pa.schema(
        [
            _column("part", _TEXT),
            _column("work_item_id", _TEXT),
            _column("row_index", _INT),
            _column("probe_id", _TEXT),
            _column("request_id", _TEXT),
            _column("n_tokens", _INT),
            _column("gathered_position", _INT),
            _column("gathered_token_id", _INT),
            _column("truncated", _FLAG),
            _column("token_hash", _BYTES),
            _column("engine_id", _TEXT),
            _column("attestation_id", _TEXT),
            _column("dtype", _TEXT),
            _column("dim", _INT),
            _column("payload_xxh3", _BYTES),
            _column("payload", _BYTES),
        ]
    ),
)

REFUSED_PROBES = TableSpec(
    name="refused_probes",
    replaces=("part", "stage"),
    schema=pa.schema(
        [
            _column("part", _TEXT),
            _column("stage", _TEXT),
            _column("probe_id", _TEXT),
            _column("reason", _TEXT),
            _column("detail", _TEXT),
            _column("source_uri", _TEXT),
            _column("source_row", _LONG),
        ]
    ),
)

ENGINES = TableSpec(
    name="engines",
    replaces=("engine_id",),
    schema=pa.schema(
        [
            _column("engine_id", _TEXT),
            _column("model_key", _TEXT),
            _column("directory", _TEXT),
            _column("backend", _TEXT),
            _column("precision", _TEXT),
            _column("hidden_size", _INT),
            _column("vocab_size", _INT),
            _column("max_batch_size", _INT),
            _column("max_num_tokens", _INT),
            _column("max_input_len", _INT),
            _column("checkpoint_digest", _TEXT),
            _column("tokenizer_id", _TEXT),
            _column("graph_version", _TEXT),
            _column("versions", _TEXT),  # JSON object
            _column("run_id", _TEXT),
            _column("built_at", pa.timestamp("us", tz="UTC")),
        ]
    ),
)

ENGINE_VALIDATION_REPORTS = TableSpec(
    name="engine_validation_reports",
    replaces=("report_id",),
    schema=pa.schema(
        [
            _column("report_id", _TEXT),
            _column("engine_id", _TEXT),
            _column("model_key", _TEXT),
            _column("verdict", _TEXT),  # "proved" or "refused"
            _column("convention", _TEXT, nullable=True),
            _column("decided_by", _TEXT, nullable=True),
            _column("reason", _TEXT),
            _column("evidence", _TEXT),  # JSON object
            _column("run_id", _TEXT),
            _column("validated_at", pa.timestamp("us", tz="UTC")),
        ]
    ),
)

ATTESTATIONS = TableSpec(
    name="attestations",
    replaces=("attestation_id",),
    schema=pa.schema(
        [
            _column("attestation_id", _TEXT),
            _column("engine_id", _TEXT),
            _column("model_key", _TEXT),
            _column("contract", _TEXT),
            _column("worker", _TEXT),
            _column("device", _TEXT),
            _column("validated_at", _TEXT),
            _column("report_xxh3", _TEXT),
        ]
    ),
)

ALL = (
    PROBE_SETS,
    TOKENISED_BATCHES,
    WORK_ITEMS,
    EXTRACTION_REQUESTS,
    HIDDEN_STATES,
    REFUSED_PROBES,
    ENGINES,
    ENGINE_VALIDATION_REPORTS,
    ATTESTATIONS,
)
