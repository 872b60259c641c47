"""One partition from probes to work items: tokenise, sort, cut."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from resources.external_sort import ExternalSort
from resources.records import Limits, Refusal, WorkItemManifest, partition_digest
from resources.work_items.cut import cut_work_items
from resources.work_items.rows import TOKENISED
from resources.work_items.tokenise import Encoder, add_tokens

ROWS_FILE = "rows.parquet"


@dataclass(frozen=True)
class TokenisedPartition:
    """The tokenised rows of a partition, in scratch files until `close`."""

    part: str
    manifest: tuple[WorkItemManifest, ...]
    refusals: tuple[Refusal, ...]
    scratch: Path

    @property
    def n_rows(self) -> int:
        return sum(item.n_rows for item in self.manifest)

    @property
    def content_digest(self) -> bytes:
        return partition_digest(self.manifest)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in order, in batches of at most one block, with the schema `ROWS`; can be iterated again."""
        with pq.ParquetFile(self.scratch / ROWS_FILE, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group).combine_chunks().to_batches()

    def close(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def __enter__(self) -> TokenisedPartition:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tokenise_partition(
    part: str,
    probes: Iterable[pa.RecordBatch],
    tokenizer: Encoder,
    *,
    probes_digest: bytes,
    limits: Limits,
    vocab_size: int,
    scratch: Path,
) -> TokenisedPartition:
    """Tokenises `probes` and cuts them into work items within `limits`.

    `probes` has the columns probe_id, text, token_ids, messages, source_uri and source_row, as the `probe_sets` table;
    ids are unique within the partition. `probes_digest` identifies what they were read from, and goes into the
    manifest. A token id must be under `vocab_size`, the engine's. `scratch` is a folder for files that the result's
    `close` removes.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tokenise-", dir=scratch))
    try:
        with ExternalSort(TOKENISED, ("n_tokens", "token_hash", "probe_id"), folder) as rows:
            refusals = add_tokens(part, probes, tokenizer, limits, vocab_size, rows)
            manifest = cut_work_items(
                part, rows.merged(), folder / ROWS_FILE, tokenizer.tokenizer_id, probes_digest, limits
            )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return TokenisedPartition(part, tuple(manifest), tuple(refusals), folder)
