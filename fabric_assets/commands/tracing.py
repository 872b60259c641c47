"""From a stored vector back to the row of the file that it is of, each step shown again. No Dagster.

Contract: `trace` reads the lake, the engine's folder and the probe's file, and believes none of them: digests are made
again, the tokens are made again from the text, and each step says what was seen. A step that cannot be made again has
failed. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from fabric_assets.upkeep.registered import registered_shard
from io_managers.contents import stored_content
from io_managers.errors import StoreError
from io_managers.reading import StoredPartitions, find_engine, latest_verdict
from io_managers.stored_rows import stored_batches
from io_managers.tables import HIDDEN_STATES, PROBE_SETS, TableSpec
from io_managers.work_item_rows import WorkItemRows
from resources.checkpoint.tokenizer import Tokenizer, load_tokenizer
from resources.engine.config import read_engine_record
from resources.errors import FabricError
from resources.probe_files import read_shard
from resources.records import (
    ITEM_SIZE,
    Probe,
    Refusal,
    WorkItemManifest,
    extraction_request,
    token_hash,
)
from resources.work_items import tokenise_partition

ROWS_A_BATCH = 1024

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One step back, with what was seen; `passed` says that it was shown again."""

    name: str
    passed: bool
    seen: str


@dataclass(frozen=True)
class TracedToken:
    """One token of the probe."""

    index: int
    token_id: int
    text: str
    gathered: bool


@dataclass(frozen=True)
class Trace:
    """A vector's way back. Without a vector there is the refusal that says why."""

    part: str
    probe_id: str
    steps: tuple[Step, ...]
    tokens: tuple[TracedToken, ...] = ()
    refusal: Refusal | None = None

    @property
    def passed(self) -> bool:
        return all(step.passed for step in self.steps)


def trace(lake: Path | str, engines: Path, part: str, probe_id: str, *, model_key: str) -> Trace:
    """Traces the vector of one probe. `engines` is the folder of engine directories.

    Raises `StoreError` where the lake has neither a vector nor a refusal of that probe.
    """
    rows = [row for batch in _rows(lake, HIDDEN_STATES, part, probe_id, model_key) for row in batch.to_pylist()]
    stored = StoredPartitions(lake, (part,))
    if not rows:
        refusal = next((r for r in stored.refusals(part) if r.probe_id == probe_id), None)
        if refusal is not None:
            step = Step("refused", True, f"at {refusal.stage}: {refusal.reason}; {refusal.detail}")
            return Trace(part, probe_id, (step, _refused_row(refusal)), refusal=refusal)
        raise StoreError(
            f"probe {probe_id!r} of partition {part} has neither a vector of model {model_key} nor a refusal; check "
            "the partition and the id, or materialise the partition"
        )
    return _Tracer(lake, engines, stored, part, probe_id, rows).trace()


class _Tracer:
    """Holds what the steps share."""

    def __init__(
        self, lake: Path | str, engines: Path, stored: StoredPartitions, part: str, probe_id: str, rows: list[Row]
    ) -> None:
        self.lake, self.engines, self.stored = lake, engines, stored
        self.part, self.probe_id = part, probe_id
        self.rows, self.row = rows, rows[0]
        self.engine = find_engine(lake, engine_id=self.row["engine_id"])
        self.tokenizer = self._tokenizer()

    def trace(self) -> Trace:
        item_id = self.row["work_item_id"]
        manifest = next((m for m in self.stored.manifest(self.part) if m.work_item_id == item_id), None)
        item = next((w for w in self.stored.work_item_rows(self.part) if w.work_item_id == item_id), None)
        ids = _ids(item, self.row["row_index"])
        probes = _rows(self.lake, PROBE_SETS, self.part, self.probe_id)
        steps = (
            self._vector(),
            self._request(manifest),
            self._engine_step(),
            self._work_item(manifest, item),
            self._tokens(ids),
            self._made_again(probes, ids),
            self._probe(probes, manifest),
            self._source(probes),
        )
        return Trace(self.part, self.probe_id, steps, tuple(self._shown(ids)))

    def _vector(self) -> Step:
        row, width = self.row, self.row["dim"] * ITEM_SIZE.get(self.row["dtype"], 0)
        fresh = xxhash.xxh3_128_digest(row["payload"])
        passed = len(self.rows) == 1 and fresh == row["payload_xxh3"] and len(row["payload"]) == width
        said = "" if len(self.rows) == 1 else f"; {len(self.rows)} rows have this id"
        return Step(
            "vector",
            passed,
            f"{row['dim']} x {row['dtype']}, {len(row['payload'])} bytes with hash {fresh.hex()}, stored with "
            f"{row['payload_xxh3'].hex()}{said}",
        )

    def _request(self, manifest: WorkItemManifest | None) -> Step:
        row = self.row
        stored = self.stored.requests(self.part, row["engine_id"]).get(row["work_item_id"])
        if manifest is None or stored is None or self.engine is None:
            return Step("request", False, "no request, work item or engine of this vector is stored")
        fresh = extraction_request(
            manifest, engine_id=row["engine_id"], model_key=self.engine.model_key, dtype=row["dtype"]
        )
        return Step(
            "request",
            stored == fresh and row["request_id"] == fresh.request_id,
            f"{row['request_id']}: {stored.tap}, {'normalised' if stored.normalised else 'not normalised'}, "
            f"{stored.position_rule}, {stored.dtype}; its id made again is {fresh.request_id}",
        )

    def _engine_step(self) -> Step:
        if self.engine is None:
            return Step("engine", False, f"{self.row['engine_id']} is not in the table of engines")
        verdict = latest_verdict(self.lake, self.engine.engine_id)
        try:
            found = read_engine_record(self.engines / self.engine.directory).engine_id
        except FabricError as error:
            found = f"an engine that cannot be read ({error})"
        said = "never validated" if verdict is None else f"{verdict.verdict}, decided by {verdict.decided_by}"
        return Step(
            "engine",
            verdict is not None and verdict.verdict == "proved" and found == self.engine.engine_id,
            f"{self.engine.engine_id} ({self.engine.backend}, {self.engine.precision}): {said}; its folder "
            f"holds {found}",
        )

    def _work_item(self, manifest: WorkItemManifest | None, item: WorkItemRows | None) -> Step:
        if manifest is None or item is None:
            return Step("work item", False, f"{self.row['work_item_id']} is not stored any more")
        index = self.row["row_index"]
        held = item.probe_ids[index].as_py() if index < len(item.probe_ids) else "no row"
        return Step(
            "work item",
            item.digest == manifest.digest and held == self.probe_id,
            f"{item.work_item_id}, row {index} of {manifest.n_rows} is {held!r}; digest made again "
            f"{item.digest.hex()}, in the manifest {manifest.digest.hex()}",
        )

    def _tokens(self, ids: np.ndarray | None) -> Step:
        row = self.row
        if ids is None or not len(ids):
            return Step("tokens", False, "no tokens are stored")
        passed = (
            token_hash(ids) == row["token_hash"]
            and len(ids) == row["n_tokens"]
            and row["gathered_position"] == len(ids) - 1
            and row["gathered_token_id"] == int(ids[-1])
        )
        return Step(
            "tokens",
            passed,
            f"{len(ids)} tokens, hash made again {token_hash(ids).hex()}, stored with {row['token_hash'].hex()}; "
            f"gathered position {row['gathered_position']}, token {row['gathered_token_id']}{self._quoted(row)}",
        )

    def _made_again(self, probes: list[pa.RecordBatch], ids: np.ndarray | None) -> Step:
        name = "tokens made again"
        if len(probes) != 1 or ids is None or self.tokenizer is None or self.engine is None:
            return Step(name, False, "there is no probe, no engine or no tokenizer to make them with")
        with (
            TemporaryDirectory() as scratch,
            tokenise_partition(
                self.part,
                probes,
                self.tokenizer,
                probes_digest=b"",
                limits=self.engine.limits,
                vocab_size=self.engine.vocab_size,
                scratch=Path(scratch),
            ) as made,
        ):
            [fresh] = pa.Table.from_batches(made.batches()).to_pylist() or [None]
            refused = ", ".join(f"{r.reason}: {r.detail}" for r in made.refusals)
        if fresh is None:
            return Step(name, False, f"with tokenizer {self.tokenizer.tokenizer_id} the probe is refused: {refused}")
        same = fresh["token_ids"] == ids.tolist() and fresh["truncated"] == self.row["truncated"]
        return Step(
            name,
            same,
            f"{fresh['n_tokens']} tokens{', cut' if fresh['truncated'] else ''} of the stored probe, with tokenizer "
            f"{self.tokenizer.tokenizer_id}; hash {fresh['token_hash'].hex()}",
        )

    def _probe(self, probes: list[pa.RecordBatch], manifest: WorkItemManifest | None) -> Step:
        content = stored_content(self.lake, PROBE_SETS, {"part": self.part})
        made_of = None if manifest is None else manifest.probes_digest
        return Step(
            "probe",
            len(probes) == 1 and content is not None and content == made_of,
            f"{len(probes)} row of probe_sets, with content {_hex(content)}; the work item was made of {_hex(made_of)}",
        )

    def _source(self, probes: list[pa.RecordBatch]) -> Step:
        name = "source row"
        if len(probes) != 1:
            return Step(name, False, "there is no one probe to look for")
        [stored] = probes[0].to_pylist()
        where = f"row {stored['source_row']} of {stored['source_uri']}"
        try:
            rows = read_shard(*registered_shard(self.part))
            fresh = next((r for r in rows if isinstance(r, Probe) and r.probe_id == self.probe_id), None)
        except FabricError as error:
            return Step(name, False, f"{where} cannot be read again: {error}")
        same = fresh is not None and PROBE_SETS.rows_of([fresh]).to_pylist() == [stored]
        return Step(name, same, f"{where} {'gives' if same else 'does not give'} this probe when it is read again")

    def _tokenizer(self) -> Tokenizer | None:
        if self.engine is None:
            return None
        try:
            return load_tokenizer(self.engines / self.engine.directory)
        except FabricError:
            return None

    def _quoted(self, row: Row) -> str:
        return "" if self.tokenizer is None else f" {self.tokenizer.decode([row['gathered_token_id']])!r}"

    def _shown(self, ids: np.ndarray | None) -> Iterator[TracedToken]:
        for index, token in enumerate(() if ids is None else ids.tolist()):
            text = "" if self.tokenizer is None else self.tokenizer.decode([token])
            yield TracedToken(index, token, text, gathered=index == self.row["gathered_position"])


def _rows(
    lake: Path | str, spec: TableSpec, part: str, probe_id: str, model_key: str | None = None
) -> list[pa.RecordBatch]:
    """The rows of a probe, each a batch of one; there should be one at most."""
    found = []
    for batch in stored_batches(lake, spec, {"part": part}, model_key=model_key, rows=ROWS_A_BATCH):
        for at in np.flatnonzero(pc.equal(batch["probe_id"], probe_id).to_numpy(zero_copy_only=False)).tolist():
            found.append(batch.slice(at, 1))
    return found


def _ids(item: WorkItemRows | None, row_index: int) -> np.ndarray | None:
    """The stored token ids of a row."""
    if item is None or row_index >= len(item.n_tokens):
        return None
    end = int(np.cumsum(item.n_tokens, dtype=np.int64)[row_index])
    return item.token_ids[end - int(item.n_tokens[row_index]) : end]


def _refused_row(refusal: Refusal) -> Step:
    where = f"row {refusal.source_row} of {refusal.source_uri}"
    try:
        probe_set, shard = registered_shard(refusal.part)
        place = refusal.source_uri, refusal.source_row
        fresh = next((r for r in read_shard(probe_set, shard) if (r.source_uri, r.source_row) == place), None)
    except FabricError as error:
        return Step("source row", False, f"{where} cannot be read again: {error}")
    if isinstance(fresh, Refusal):
        return Step("source row", fresh == refusal, f"{where} is refused again: {fresh.reason}")
    same = fresh is not None and fresh.probe_id == refusal.probe_id
    return Step("source row", same, f"{where} {'gives' if same else 'does not give'} this probe when it is read again")


def _hex(content: bytes | None) -> str:
    return "none" if content is None else content.hex()
