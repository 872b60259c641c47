"""What decides the work items of a partition, as one digest that is found without tokenising anything."""

from __future__ import annotations

import struct

from resources.records import Limits, digest

CUTTING = b"1"
"""The version of how probes become work items; raise it when the same probes would give other ones."""


def recipe_digest(*, probes_digest: bytes, tokenizer_id: str, limits: Limits, vocab_size: int) -> bytes:
    """16 bytes: of the probes, the tokenizer with its policy, and what a packed batch may hold."""
    numbers = (limits.max_batch_size, limits.max_num_tokens, limits.max_input_len, vocab_size)
    return digest([CUTTING, probes_digest, tokenizer_id.encode(), struct.pack("<4Q", *numbers)])
