"""Sequences -> work items -> the arrays of one batch.

Contract: `plan` decides which sequences share a batch, `gather_ids` is the one function that computes a gather index,
and `pack` lays sequences end to end and fills every array that a packed engine reads: int32, C-contiguous. Names
follow TensorRT-LLM's packed interface; `padded_index` and `packed_index` are this project's own and serve attention,
the only place where anything is padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from resources.errors import EngineError
from resources.records import GatherConvention, Limits

PADDED_LENGTH_MULTIPLE = 8
"""The padded length inside attention is rounded up to this; unaligned lengths are slow (239 took
1.4 times as long as 240, TensorRT 8.6 on an H200)."""

SHORTEST_BUCKET = 128
BUCKET_RATIO = 4
"""Each length bucket is this many times the one before. It bounds padding too: `most_sequences`."""


@dataclass(frozen=True)
class PackedBatch:
    """The arrays of one batch of n sequences with T tokens in all, the longest padded to L inside attention."""

    input_ids: np.ndarray
    """[T] token ids, sequences laid end to end."""
    position_ids: np.ndarray
    """[T] position of each token within its own sequence."""
    last_token_ids: np.ndarray
    """[n] what to gather, in the engine's convention."""
    context_lengths: np.ndarray
    """[n] tokens of each sequence."""
    padded_index: np.ndarray
    """[n, L] which packed token fills each padded slot; a slot past a sequence's end repeats its last token."""
    packed_index: np.ndarray
    """[T] which slot of the flattened [n * L] padded layout each packed token has."""

    @property
    def n_sequences(self) -> int:
        return len(self.context_lengths)

    @property
    def n_tokens(self) -> int:
        return len(self.input_ids)


def buckets(limits: Limits) -> tuple[int, ...]:
    """The lengths that padding inside attention is planned for, ascending; the last one holds every sequence."""
    longest = padded(min(limits.max_input_len, limits.max_num_tokens))
    lengths = [SHORTEST_BUCKET]
    while lengths[-1] < longest:
        lengths.append(lengths[-1] * BUCKET_RATIO)
    return (*lengths[:-1], longest)


def bucket(length: int, limits: Limits) -> int:
    """The smallest of `buckets` that holds a sequence of `length` tokens."""
    return next(b for b in buckets(limits) if length <= b)


def most_sequences(longest: int, limits: Limits) -> int:
    """How many sequences a batch may have, the longest of `longest` tokens: `max_batch_size` or 4 at least.

    Beyond the shortest bucket, n * bucket(longest) stays within BUCKET_RATIO * max_num_tokens: that bounds what
    attention pads to, and so the memory of a plan. It never binds where every sequence is longer than a quarter of its
    bucket, as in batches of similar lengths; it does where a few long sequences share a batch with many short ones.
    """
    every = buckets(limits)
    if longest <= every[0]:
        return limits.max_batch_size
    slots = BUCKET_RATIO * max(limits.max_num_tokens, every[-1])
    return min(limits.max_batch_size, slots // bucket(longest, limits))


def padded(length: int) -> int:
    """`length`, rounded up to PADDED_LENGTH_MULTIPLE."""
    return -(-length // PADDED_LENGTH_MULTIPLE) * PADDED_LENGTH_MULTIPLE


def plan(lengths: Iterable[int], limits: Limits) -> Iterator[range]:
    """Cuts a stream of sequence lengths, given in packing order, into consecutive batches within `limits`.

    Yields the index range of each batch, which has at most `most_sequences` of its longest. A length over
    `max_input_len` or `max_num_tokens` is an error: such a sequence is refused or truncated before packing.
    """
    longest_allowed = min(limits.max_input_len, limits.max_num_tokens)
    most = {b: most_sequences(b, limits) for b in buckets(limits)}
    first = index = tokens = longest = 0
    for index, length in enumerate(lengths):
        if not 0 < length <= longest_allowed:
            raise EngineError(
                f"sequence {index} has {length} tokens; a packed batch takes 1 to {longest_allowed}; "
                "refuse or truncate it before packing"
            )
        tokens += length
        longest = max(longest, length)
        fits = tokens <= limits.max_num_tokens and index - first < next(n for b, n in most.items() if longest <= b)
        if index > first and not fits:
            yield range(first, index)
            first, tokens, longest = index, length, length
    if tokens:
        yield range(first, index + 1)


def gather_ids(lengths: np.ndarray, convention: GatherConvention) -> np.ndarray:
    """`last_token_ids` of sequences of these lengths under `convention`; int32 [n].

    Every gather index that reaches an engine comes from here. Anything but a known convention is an error.
    """
    ends = np.cumsum(lengths, dtype=np.int64).astype(np.int32)
    match convention:
        case GatherConvention.EXCLUSIVE_END:
            return ends
        case GatherConvention.INCLUSIVE_END:
            return ends - np.int32(1)
    raise EngineError(
        f"gather convention is {convention!r}; expected one of {[c.value for c in GatherConvention]}; "
        "load the engine through resources.proof.load, which proves it"
    )


def pack(sequences: Sequence[np.ndarray], convention: GatherConvention) -> PackedBatch:
    """Lays `sequences` (each int [length >= 1]) end to end."""
    lengths = np.array([len(s) for s in sequences], dtype=np.int32)
    last_token_ids = gather_ids(lengths, convention)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    longest = padded(int(lengths.max()))
    position_ids = np.arange(lengths.sum(), dtype=np.int32) - np.repeat(starts, lengths)
    rows = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return PackedBatch(
        input_ids=np.concatenate(sequences).astype(np.int32, copy=False),
        position_ids=position_ids,
        last_token_ids=last_token_ids,
        context_lengths=lengths,
        padded_index=starts[:, None] + np.minimum(np.arange(longest, dtype=np.int32), lengths[:, None] - 1),
        packed_index=rows * np.int32(longest) + position_ids,
    )
