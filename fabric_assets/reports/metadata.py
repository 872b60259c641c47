"""Records of the core -> Dagster metadata. Pure functions; nothing here reads a table or runs an engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from io_managers import layout
from io_managers.audit import Account, VectorScan
from io_managers.delta_table import Committed
from io_managers.tables import TOKENISED_BATCHES, TableSpec
from resources.proof.contract import Clause
from resources.records import EngineRecord, EngineVerdict, Refusal, WorkItemManifest

Metadata = dict[str, dg.MetadataValue]

COLUMN_LINEAGE = {
    "tokenised_batches": {
        "probe_id": ("probe_sets", "probe_id"),
        "token_ids": ("probe_sets", "text"),
        "token_hash": ("probe_sets", "text"),
        "n_tokens": ("probe_sets", "text"),
    },
    "hidden_states": {
        "payload": ("tokenised_batches", "token_ids"),
        "gathered_token_id": ("tokenised_batches", "token_ids"),
        "token_hash": ("tokenised_batches", "token_hash"),
        "probe_id": ("tokenised_batches", "probe_id"),
        "work_item_id": ("work_items", "work_item_id"),
        "request_id": ("extraction_requests", "request_id"),
        "engine_id": ("engine", "engine_id"),
    },
}
"""By table and column: the asset and column that it is made of."""


def table_definition(spec: TableSpec) -> dict[str, object]:
    """Definition-time metadata: the table's name and column schema."""
    return {"dagster/table_name": spec.name, "dagster/column_schema": _schema(spec)}


def columns(spec: TableSpec) -> Metadata:
    """Materialisation metadata: the column schema, and the column lineage where a column is made of others."""
    made_of = {
        column: [dg.TableColumnDep(asset_key=dg.AssetKey(asset), column_name=name)]
        for column, (asset, name) in COLUMN_LINEAGE.get(spec.name, {}).items()
    }
    schema = dg.MetadataValue.table_schema(_schema(spec))
    if not made_of:
        return {"dagster/column_schema": schema}
    lineage = dg.MetadataValue.column_lineage(dg.TableColumnLineage(made_of))
    return {"dagster/column_schema": schema, "dagster/column_lineage": lineage}


def rows_written(committed: Committed, refusals: Sequence[Refusal]) -> Metadata:
    """Of one partition's commit."""
    return {
        "dagster/partition_row_count": dg.MetadataValue.int(committed.rows),
        "bytes": dg.MetadataValue.int(committed.bytes),
        "delta_version": dg.MetadataValue.int(committed.version),
        "already_stored": dg.MetadataValue.bool(committed.skipped),
        "refused": dg.MetadataValue.int(len(refusals)),
        "refusals_by_reason": dg.MetadataValue.json(_by_reason(refusals)),
    }


def tokenised(manifest: Sequence[WorkItemManifest], refusals: Sequence[Refusal], committed: Committed) -> Metadata:
    """Of one partition of `tokenised_batches`."""
    return rows_written(committed, refusals) | {
        **columns(TOKENISED_BATCHES),
        "work_items": dg.MetadataValue.int(len(manifest)),
        "sequences": dg.MetadataValue.int(sum(m.n_sequences for m in manifest)),
        "tokens": dg.MetadataValue.int(sum(m.n_tokens for m in manifest)),
        "longest": dg.MetadataValue.int(max((m.max_tokens for m in manifest), default=0)),
    }


def engine(record: EngineRecord, folder: Path) -> Metadata:
    """Of a built engine."""
    return {
        "engine_id": dg.MetadataValue.text(record.engine_id),
        "model_key": dg.MetadataValue.text(record.model_key),
        "directory": dg.MetadataValue.path(str(folder / record.directory)),
        "backend": dg.MetadataValue.text(record.backend),
        "precision": dg.MetadataValue.text(record.precision),
        "versions": dg.MetadataValue.json(dict(record.versions)),
    }


def verdict_row(engine: EngineRecord, row: EngineVerdict | None) -> Metadata:
    """Of the check that an engine is proved."""
    return {
        "engine_id": dg.MetadataValue.text(engine.engine_id),
        "verdict": dg.MetadataValue.text(row.verdict if row else "not validated"),
        "decided_by": dg.MetadataValue.text(str(row.decided_by) if row else "nothing"),
        "reason": dg.MetadataValue.text(row.reason if row else "no report is stored for this engine"),
        "sentence": dg.MetadataValue.text(json.loads(row.evidence_json)["sentence"] if row else ""),
        **({"page": dg.MetadataValue.path(str(layout.report_path(row.report_id)))} if row else {}),
    }


def contract(clauses: Sequence[Clause]) -> Metadata:
    """The contract, clause by clause."""
    records = [
        dg.TableRecord({"clause": c.name, "passed": c.passed, "seen": c.seen, "expected": c.expected}) for c in clauses
    ]
    return {"contract": dg.MetadataValue.table(records)}


def account(a: Account) -> Metadata:
    """Where every probe of a partition went."""
    return {
        "probes_in": dg.MetadataValue.int(a.rows_in),
        "vectors": dg.MetadataValue.int(a.stored),
        "refused": dg.MetadataValue.int(sum(a.refused.values())),
        "unaccounted": dg.MetadataValue.int(a.unaccounted),
        "refusals_by_reason": dg.MetadataValue.json({f"{stage}: {why}": n for (stage, why), n in a.refused.items()}),
    }


def scan(s: VectorScan) -> Metadata:
    """What reading every stored vector of a partition back showed."""
    return {
        "rows": dg.MetadataValue.int(s.rows),
        "non_finite": dg.MetadataValue.int(s.non_finite),
        "damaged": dg.MetadataValue.int(s.damaged),
        "shared_vectors": dg.MetadataValue.int(s.shared_vectors),
        "example": dg.MetadataValue.text(s.example or "none"),
    }


def _by_reason(refusals: Sequence[Refusal]) -> dict[str, int]:
    return dict(sorted(Counter(f"{r.stage}: {r.reason}" for r in refusals).items()))


def _schema(spec: TableSpec) -> dg.TableSchema:
    """A column's description says what it is made of: the open-source UI draws no column lineage."""
    made_of = COLUMN_LINEAGE.get(spec.name, {})
    return dg.TableSchema(
        [
            dg.TableColumn(
                f.name,
                str(f.type),
                description=f"made of {'.'.join(made_of[f.name])}" if f.name in made_of else None,
                constraints=dg.TableColumnConstraints(nullable=f.nullable),
            )
            for f in spec.schema
        ]
    )
