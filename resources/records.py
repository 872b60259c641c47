"""The records that pass between stages, and their digests.

Contract: frozen, free of Dagster, Delta and any engine; every other module may import this one. Digests are xxh3-128
(16 bytes) over length-prefixed fields, so that no two different contents share an input. An identity (`model_key`, a
partition's digest) is a digest of content; a Delta version or a file path is never part of one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import xxhash

_READ_BYTES = 4 << 20

PART_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A partition key, whole. An empty one makes a Delta table that cannot be read again (seen with deltalake 1.6)."""

TAP = "final_norm"
"""Where a vector is read: the input to the language-model head, after the final norm."""

POSITION_RULE = "last_token"
"""Which position of a sequence is read."""

BYTE_ORDER = "little"

ITEM_SIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element of a payload, by dtype name."""


class GatherConvention(Enum):
    """What one entry of `last_token_ids` means to an engine."""

    EXCLUSIVE_END = "exclusive_end"
    """The cumulative length; the engine subtracts one itself."""
    INCLUSIVE_END = "inclusive_end"
    """The cumulative length minus one; the engine gathers at that index."""


class Message(NamedTuple):
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True)
class Probe:
    """One example of a probe set. Exactly one of `text`, `token_ids` and `messages` is given."""

    part: str
    probe_id: str
    text: str | None
    token_ids: tuple[int, ...] | None
    source_uri: str
    source_row: int
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True)
class Refusal:
    """A probe that gets no vector, with the stage that refused it and why. `source_row` locates one without an id."""

    part: str
    stage: str
    probe_id: str
    reason: str
    detail: str
    source_uri: str
    source_row: int


@dataclass(frozen=True)
class Limits:
    """What one packed batch may hold."""

    max_batch_size: int
    max_num_tokens: int
    max_input_len: int

    def hold(self, *, sequences: int, tokens: int, longest: int) -> bool:
        """Whether a batch of so many sequences and tokens, the longest of `longest` tokens, is within them."""
        return sequences <= self.max_batch_size and tokens <= self.max_num_tokens and longest <= self.max_input_len


@dataclass(frozen=True)
class WorkItem:
    """A packed batch as read back from the store: the unit of work.

    Row i of the work item is `probe_ids[i]`; its tokens are `sequences[sequence_index[i]]`. Equal token sequences are
    one sequence, so there can be more rows than sequences.
    """

    part: str
    work_item_id: str
    probe_ids: tuple[str, ...]
    sequence_index: np.ndarray
    """int32 [n_rows], non-decreasing, 0 .. n_sequences - 1."""
    sequences: tuple[np.ndarray, ...]
    """n_sequences arrays of int32 token ids, laid end to end in this order."""
    token_hashes: np.ndarray
    """uint8 [n_sequences, 16]: `token_hash` of each sequence, as stored."""
    truncated: np.ndarray
    """bool [n_rows]."""

    @property
    def n_rows(self) -> int:
        return len(self.probe_ids)

    @property
    def n_tokens(self) -> int:
        return sum(len(s) for s in self.sequences)


@dataclass(frozen=True)
class WorkItemManifest:
    """A work item's row in the manifest: what its rows must add up to."""

    part: str
    work_item_id: str
    n_rows: int
    n_sequences: int
    n_tokens: int
    max_tokens: int
    digest: bytes
    """`work_item_digest` of its rows."""
    tokenizer_id: str
    probes_digest: bytes
    """8 bytes that identify the partition of `probe_sets` that it was made of, as the store gives them."""


@dataclass(frozen=True)
class ExtractionRequest:
    """What was asked, of which work item, of which engine."""

    part: str
    request_id: str
    work_item_id: str
    engine_id: str
    model_key: str
    tap: str
    normalised: bool
    position_rule: str
    dtype: str
    byte_order: str


@dataclass(frozen=True)
class HiddenStates:
    """The vectors of consecutive rows of one work item, as an engine returned them. Probe ids are not among them."""

    part: str
    work_item_id: str
    request_id: str
    engine_id: str
    dtype: str
    dim: int
    row_index: np.ndarray
    """int32 [n]."""
    token_hash: np.ndarray
    """uint8 [n, 16], taken from the ids that were fed to the engine."""
    n_tokens: np.ndarray
    """int32 [n]."""
    gathered_position: np.ndarray
    """int32 [n], the position within the sequence that the frozen convention gathers."""
    gathered_token_id: np.ndarray
    """int32 [n], the token at that position of what was fed."""
    payload: np.ndarray
    """uint8 [n, dim * item size], raw little-endian elements."""
    payload_xxh3: np.ndarray
    """uint8 [n, 16], of each payload row, taken where the engine's output was copied out."""


class VectorStream(Protocol):
    """One partition's vectors, pulled in the order of its work items by whoever stores them.

    Nothing runs before the first pull. A failure ends the iteration by being raised, as itself.
    """

    part: str
    model_key: str
    engine_id: str
    dtype: str
    dim: int
    input_digest: bytes
    """`partition_digest` of the manifest that the extraction read."""

    @property
    def attestation(self) -> Attestation:
        """Of the process that computes the vectors; known once the first of them was pulled."""
        ...

    def __iter__(self) -> Iterator[HiddenStates]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class EngineRecord:
    """A built engine. `directory` is relative to the folder of engines, or absolute for one that lies elsewhere."""

    engine_id: str
    model_key: str
    directory: str
    backend: str
    precision: str
    hidden_size: int
    vocab_size: int
    limits: Limits
    checkpoint_digest: str
    tokenizer_id: str
    graph_version: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class EngineVerdict:
    """What a validation of an engine came to, as a row: the report itself is in `evidence_json`."""

    report_id: str
    engine_id: str
    model_key: str
    verdict: str
    """Either "proved" or "refused"."""
    convention: str | None
    decided_by: str | None
    reason: str
    evidence_json: str


@dataclass(frozen=True)
class Attestation:
    """What a process says of itself once it holds a proven engine: who computes, with which engine, since when."""

    engine_id: str
    model_key: str
    contract: str
    """The digest of the contract under which it takes work from a broker; "" for a process that takes none."""
    worker: str
    """The host and the process, and the name that the worker was given."""
    device: str
    """What computes: the GPU's or the processor's own name."""
    validated_at: str
    """When its engine was proved in this process, ISO 8601, UTC."""
    report_xxh3: str
    """xxh3-128 of that validation's report as JSON, 32 hexadecimal digits."""

    @property
    def attestation_id(self) -> str:
        """32 hexadecimal digits of all fields."""
        return digest(value.encode() for value in astuple(self)).hex()


def digest(fields: Iterable[bytes]) -> bytes:
    """xxh3-128 over length-prefixed fields; 16 bytes."""
    h = xxhash.xxh3_128()
    for field in fields:
        h.update(struct.pack("<Q", len(field)))
        h.update(field)
    return h.digest()


def file_digest(path: Path) -> str:
    """xxh3-128 of a file's bytes, hex, read piece by piece. Raises OSError."""
    h = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            h.update(piece)
    return h.hexdigest()


def payload_elements(payload: np.ndarray, dtype: str) -> np.ndarray:
    """The elements of payloads, uint8 [..., dim * item size] of a `dtype` of `ITEM_SIZE`: [..., dim], float32 and
    float16 as they are and without a copy, bfloat16, which numpy lacks, as float32 (exact)."""
    if dtype == "bfloat16":
        return (payload.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return payload.view(np.dtype(dtype).newbyteorder("<"))


def token_hash(ids: np.ndarray) -> bytes:
    """xxh3-128 of a sequence's token ids as little-endian int32; 16 bytes."""
    return xxhash.xxh3_128_digest(np.ascontiguousarray(ids, dtype="<i4").data)


def work_item_digest(
    probe_ids: Sequence[str], token_hashes: Sequence[bytes], sequence_index: Sequence[int], truncated: Sequence[bool]
) -> bytes:
    """Digest of a work item's rows in order: each row's probe id, token hash, place among the sequences, and whether
    its tokens were cut."""
    h = xxhash.xxh3_128()
    for probe_id, hashed, index, cut in zip(probe_ids, token_hashes, sequence_index, truncated, strict=True):
        name = probe_id.encode()
        h.update(struct.pack("<III", len(name), index, cut))
        h.update(name)
        h.update(hashed)
    return h.digest()


def partition_digest(manifest: Iterable[WorkItemManifest]) -> bytes:
    """Digest of a partition's content: its work items in order. The identity of what an extraction reads."""
    return digest(
        field
        for item in manifest
        for field in (
            item.work_item_id.encode(),
            struct.pack("<Q", item.n_rows),
            item.digest,
            item.tokenizer_id.encode(),
            item.probes_digest,
        )
    )


def model_key(*, checkpoint_digest: str, graph_version: str, tokenizer_id: str, tap: str, dtype: str) -> str:
    """The identity of what decides the numbers; names the table, the queue and what counts as already done."""
    return digest(f.encode() for f in (checkpoint_digest, graph_version, tokenizer_id, tap, dtype)).hex()


def extraction_request(item: WorkItemManifest, *, engine_id: str, model_key: str, dtype: str) -> ExtractionRequest:
    """The request for one work item's last-token vectors from one engine; its id is a digest of all that it asks."""
    fields = (item.part, item.work_item_id, engine_id, model_key, TAP, "normalised", POSITION_RULE, dtype, BYTE_ORDER)
    return ExtractionRequest(
        part=item.part,
        request_id=digest([item.digest, *(f.encode() for f in fields)]).hex(),
        work_item_id=item.work_item_id,
        engine_id=engine_id,
        model_key=model_key,
        tap=TAP,
        normalised=True,
        position_rule=POSITION_RULE,
        dtype=dtype,
        byte_order=BYTE_ORDER,
    )
