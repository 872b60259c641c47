"""What a partition of `hidden_states` shows in the UI. Pure functions: nothing here reads a table or runs an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import dagster as dg
import numpy as np

from fabric_assets import reports
from fabric_assets.reports import Metadata
from fabric_assets.reports.norms import NormBin, Norms
from io_managers.delta_table import Committed
from io_managers.samples import SampleRow
from io_managers.tables import HIDDEN_STATES
from resources.extraction import Throughput
from resources.proof.contract import Clause
from resources.records import Attestation, EngineRecord, Refusal, WorkItemManifest

TEXT_SHOWN = 80
ELEMENTS_SHOWN = 3
BAR = 30
"""Characters of the longest bar of a histogram."""


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What was computed of a partition just now; there is none where what is stored was kept."""

    throughput: Throughput
    norms: Norms
    clauses: Sequence[Clause]
    withdrawn: int
    """Probes that had a vector before and have none now."""
    attestation: Attestation
    """Of the process that computed them."""


def vectors_written(
    *,
    committed: Committed,
    engine: EngineRecord,
    manifest: Sequence[WorkItemManifest],
    refusals: Sequence[Refusal],
    versions: Mapping[str, int],
    sample: Sequence[SampleRow],
    decode: Callable[[Sequence[int]], str],
    extraction: Extraction | None,
) -> Metadata:
    """Of one partition; numbers that the UI plots over the partitions are of what was computed, and absent where
    nothing was. `refusals` are those of every stage."""
    # What a person asks first comes first.
    return reports.rows_written(committed, refusals) | {
        "tokens": dg.MetadataValue.int(sum(m.n_tokens for m in manifest)),
        "sequences": dg.MetadataValue.int(sum(m.n_sequences for m in manifest)),
        **({} if extraction is None else _computed(extraction)),
        "sample_rows": _sample(sample, decode),
        **({} if extraction is None else reports.contract(extraction.clauses)),
        "engine_id": dg.MetadataValue.text(engine.engine_id),
        "model_key": dg.MetadataValue.text(engine.model_key),
        "versions_read": dg.MetadataValue.json(dict(versions)),
        **reports.columns(HIDDEN_STATES),
    }


def _computed(extraction: Extraction) -> Metadata:
    throughput, norms = extraction.throughput, extraction.norms
    shown = {
        "tokens_computed": dg.MetadataValue.int(throughput.tokens),
        "seconds": _figure(throughput.seconds),
        "tokens_per_second_average": _figure(throughput.average_tokens_per_second),
        "tokens_per_second_peak": _figure(throughput.peak_tokens_per_second),
        "withdrawn": dg.MetadataValue.int(extraction.withdrawn),
        "attested_by": dg.MetadataValue.json(asdict(extraction.attestation)),
    }
    if norms.vectors:
        shown |= {
            "norm_mean": _figure(norms.mean),
            "norm_least": _figure(norms.least),
            "norm_greatest": _figure(norms.greatest),
            "norm_histogram": dg.MetadataValue.md(_histogram(norms.histogram())),
        }
    return shown


def _figure(x: float) -> dg.MetadataValue:
    """To six digits: the UI shows every digit that there is."""
    return dg.MetadataValue.float(float(f"{x:.6g}"))


def _histogram(bins: Sequence[NormBin]) -> str:
    most = max((b.vectors for b in bins), default=1)
    lines = ["| norm | vectors | |", "|---|---:|---|"]
    for b in bins:
        bar = "█" * max(int(b.vectors > 0), round(BAR * b.vectors / most))
        lines.append(f"| {b.least:.4g} to {b.greatest:.4g} | {b.vectors:,} | {bar} |")
    return "\n".join(lines)


def _sample(rows: Sequence[SampleRow], decode: Callable[[Sequence[int]], str]) -> dg.MetadataValue:
    records = [
        dg.TableRecord(
            {
                "probe_id": row.probe_id,
                "text": _cut(decode(row.token_ids.tolist())),
                "tokens": len(row.token_ids),
                "gathered_position": row.gathered_position,
                "gathered_token": decode([int(row.token_ids[row.gathered_position])]),
                "norm": float(f"{np.linalg.norm(row.vector.astype(np.float64)):.6g}"),
                "vector": ", ".join(f"{x:.3g}" for x in row.vector[:ELEMENTS_SHOWN].tolist()) + ", ...",
            }
        )
        for row in rows
    ]
    kinds = {"tokens": "int", "gathered_position": "int", "norm": "float"}
    names = ("probe_id", "text", "tokens", "gathered_position", "gathered_token", "norm", "vector")
    schema = dg.TableSchema([dg.TableColumn(name, kinds.get(name, "string")) for name in names])
    return dg.MetadataValue.table(records, schema=schema)


def _cut(text: str) -> str:
    """The end of a long text, which is where the vector is of."""
    return text if len(text) <= TEXT_SHOWN else "..." + text[3 - TEXT_SHOWN :]
