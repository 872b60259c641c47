"""A validation report -> its sections, in the order in which a person asks."""

from __future__ import annotations

from collections.abc import Mapping

from resources.proof.validation import ValidationReport
from resources.report import evidence, vectors
from resources.report.overview import overview
from resources.report.view import Section, Table, row, yes_no


def sections(report: ValidationReport) -> tuple[Section, ...]:
    """Every section for which there is evidence; of a refusal too."""
    found = (
        overview(report),
        vectors.layers(report) if report.reason == "non-finite" else None,
        vectors.samples(report),
        vectors.head(report),
        evidence.convention(report),
        evidence.dependence(report),
        evidence.reads(report),
        vectors.packs(report),
        vectors.layers(report) if report.reason != "non-finite" else None,
        _contract(report),
        _bindings(report),
        _origin(report),
    )
    return tuple(s for s in found if s is not None)


def _contract(report: ValidationReport) -> Section | None:
    if not report.contract:
        return None
    failed = [c.name for c in report.contract if not c.passed]
    lead = "Every clause between this engine and the work that is asked of it holds."
    if failed:
        lead = (
            f"{', '.join(failed)}: not met, which keeps this engine from the work that is asked of it and leaves its "
            "verdict alone."
        )
    table = Table(
        ("clause", "holds", "seen", "expected"),
        tuple(row(c.name, yes_no(c.passed), c.seen, c.expected) for c in report.contract),
    )
    return Section("contract", "The consumer's contract", lead, (table,))


def _bindings(report: ValidationReport) -> Section | None:
    if not report.bindings:
        return None
    total = sum(b.bytes for b in report.bindings)
    table = Table(
        ("tensor", "role", "location", "dtype", "shape", "maximum", "bytes"),
        tuple(
            row(b.name, b.role, b.location, b.dtype, _shape(b.shape), _shape(b.maximum), f"{b.bytes:,}")
            for b in report.bindings
        ),
        code=(0, 4, 5),
    )
    lead = (
        f"Every tensor that the engine exposes, with its role in a batch. The buffers take {total:,} bytes, allocated "
        "once."
    )
    return Section("bindings", "Bindings", lead, (table,))


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join("?" if d == -1 else f"{d:,}" for d in shape) or "scalar"


def _origin(report: ValidationReport) -> Section:
    origin = report.origin
    digests = {
        "engine": report.engine_id,
        "model key": report.model_key,
        "checkpoint": origin.checkpoint_digest or "not known: the engine was not built here",
        "graph version": origin.graph_version or "not known",
        "tokenizer": origin.tokenizer_id or "not opened",
    }
    tables = [_names(digests, "digest of", "")]
    for caption, pairs in (
        ("Tokenizer policy", origin.tokenizer_policy),
        ("Built with", origin.built_with),
        ("Runs with", origin.runs_with),
    ):
        if pairs:
            tables.append(_names(pairs, "", caption))
    lead = "What was validated. Two reports with these digests are of the same engine, bit for bit."
    return Section("origin", "Digests, policy and versions", lead, tuple(tables))


def _names(pairs: Mapping[str, str], name: str, caption: str) -> Table:
    return Table((name, ""), tuple(row(k, v) for k, v in pairs.items()), caption=caption, code=(1,))
