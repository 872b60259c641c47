"""What decides the rows of a shard, as one digest that is found without reading a row."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple

from resources.probe_files.probe_set import ProbeSet, Shard
from resources.records import digest

READING = b"1"
"""The version of how a file's rows become probes; raise it when the same bytes would give other ones."""


def shard_identity(probe_set: ProbeSet, shard: Shard) -> bytes:
    """16 bytes: of the files' bytes, how they are read, where the shard lies in them, and which ids occurred before.

    A file that grew gives each of its shards another identity, though the rows of most may be the same.
    """
    files = [
        [source.uri, source.name, source.format, source.digest, *astuple(piece)[1:]]
        for piece in shard.slices
        for source in [probe_set.sources[piece.source]]
    ]
    duplicates = probe_set.duplicates and [probe_set.duplicates.name, shard.first_ordinal]
    fields = [shard.part, asdict(probe_set.format), files, duplicates]
    return digest([READING, *(json.dumps(field, sort_keys=True).encode() for field in fields)])
