"""What an extraction of a probe file would come to, without making anything. No Dagster.

Contract: the files are read whole, so that probes and partitions are exact. Tokens and refusals are exact where every
row was tokenised, which is up to `sample` rows; beyond, rows of partitions that are spread over the set are tokenised,
and the rest follows in proportion. Equal texts of a partition are computed once, as they would be.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from io_managers.tables import PROBE_SETS
from resources.model import Model
from resources.probe_files import ProbeFormat, ProbeSet, Shard, read_shard, register
from resources.records import ITEM_SIZE, Probe
from resources.work_items import tokenise_partition

SAMPLE = 20_000
PARTITIONS_SAMPLED = 20
ROWS_A_BATCH = 1024

ROW_BYTES = 250
"""Of a probe's rows in the tables, its text, tokens and vector left out: about what ids and digests take."""


@dataclass(frozen=True)
class Rate:
    """How fast an engine of the model was: `tokens` of earlier partitions in `seconds`."""

    tokens: int
    seconds: float
    partitions: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Plan:
    """What was found. Counts beyond `rows_tokenised` of `rows` are in proportion."""

    rows: int
    rows_tokenised: int
    partitions: int
    probes: int
    """That would get a vector."""
    refusals: Mapping[str, int]
    """By stage and reason."""
    sequences: int
    tokens: int
    """That an engine would compute: of the different sequences."""
    longest: int
    vector_bytes: int
    bytes: int
    """About: vectors, tokens, texts and ids."""
    free_bytes: int
    rate: Rate | None
    """None where nothing was measured yet."""

    @property
    def exact(self) -> bool:
        return self.rows_tokenised == self.rows

    @property
    def hours(self) -> float | None:
        """At the measured rate; None where there is none."""
        return None if self.rate is None else self.tokens / self.rate.tokens_per_second / 3600

    @property
    def fits(self) -> bool:
        return self.bytes < self.free_bytes


def plan(
    probes: Path,
    *,
    format: ProbeFormat,
    shard_rows: int,
    model: Model,
    precision: str,
    home: Path,
    rate: Rate | None,
    sample: int = SAMPLE,
) -> Plan:
    """Plans the extraction of a file or folder into `home`. Raises as `register` and `Model` do."""
    with TemporaryDirectory() as scratch:
        probe_set = register(probes, format=format, folder=Path(scratch), name="plan", shard_rows=shard_rows)
        seen = _Seen()
        for shard, rows in _sampled(probe_set, sample):
            seen.add(probe_set, shard, rows, model, Path(scratch))
    whole = probe_set.n_rows / max(1, seen.rows)
    vectors = round(seen.vectors * whole)
    vector_bytes = vectors * model.open_checkpoint().config.hidden_size * ITEM_SIZE[precision]
    source_bytes = sum(source.size for source in probe_set.sources)
    return Plan(
        rows=probe_set.n_rows,
        rows_tokenised=seen.rows,
        partitions=len(probe_set.shards),
        probes=vectors,
        refusals={reason: round(n * whole) for reason, n in seen.refusals.most_common()},
        sequences=round(seen.sequences * whole),
        tokens=round(seen.tokens * whole),
        longest=seen.longest,
        vector_bytes=vector_bytes,
        bytes=vector_bytes + source_bytes + round(4 * seen.row_tokens * whole) + ROW_BYTES * probe_set.n_rows,
        free_bytes=shutil.disk_usage(_existing(home)).free,
        rate=rate,
    )


class _Seen:
    """Adds up what tokenising shards gives."""

    def __init__(self) -> None:
        self.rows = self.vectors = self.sequences = self.tokens = self.row_tokens = self.longest = 0
        self.refusals: Counter[str] = Counter()

    def add(self, probe_set: ProbeSet, shard: Shard, rows: int, model: Model, scratch: Path) -> None:
        """The first `rows` rows of a shard."""
        with tokenise_partition(
            shard.part,
            self._batches(probe_set, shard, rows),
            model.open_tokenizer(),
            probes_digest=b"",
            limits=model.limits,
            vocab_size=model.open_checkpoint().config.vocab_size,
            scratch=scratch,
        ) as made:
            self.vectors += made.n_rows
            self.sequences += sum(item.n_sequences for item in made.manifest)
            self.tokens += sum(item.n_tokens for item in made.manifest)
            self.longest = max([self.longest, *(item.max_tokens for item in made.manifest)])
            self.row_tokens += sum(sum(batch["n_tokens"].to_pylist()) for batch in made.batches())
            self.refusals.update(f"{refusal.stage}: {refusal.reason}" for refusal in made.refusals)

    def _batches(self, probe_set: ProbeSet, shard: Shard, rows: int) -> Iterator[pa.RecordBatch]:
        held: list[Probe] = []
        for row in islice(read_shard(probe_set, shard), rows):
            self.rows += 1
            if isinstance(row, Probe):
                held.append(row)
            else:
                self.refusals[f"{row.stage}: {row.reason}"] += 1
            if len(held) == ROWS_A_BATCH:
                yield PROBE_SETS.rows_of(held)
                held = []
        if held:
            yield PROBE_SETS.rows_of(held)


def _sampled(probe_set: ProbeSet, sample: int) -> Iterator[tuple[Shard, int]]:
    """Shards, and how many of each one's first rows are tokenised: all, or some of shards spread over the set."""
    shards = probe_set.shards
    if probe_set.n_rows <= sample:
        yield from ((shard, shard.n_rows) for shard in shards)
        return
    n = min(len(shards), PARTITIONS_SAMPLED)
    for i in range(n):
        shard = shards[i * len(shards) // n]
        yield shard, min(shard.n_rows, max(1, sample // n))


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
