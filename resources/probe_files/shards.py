"""One shard's rows, read from its files.

Contract: the files must still be what was registered: the same size and modification time, or else the same digest.
Every row of the shard gives one `Probe` or one `Refusal`, in the files' order.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np

from resources.errors import ProbeFileError
from resources.probe_files.duplicates import duplicates_between
from resources.probe_files.probe_set import ProbeSet, Shard, Source, SourceSlice
from resources.probe_files.probes import probe_or_refusal
from resources.probe_files.register import source_digest
from resources.probe_files.rows import read_rows
from resources.records import Probe, Refusal, digest


@dataclass(frozen=True)
class ShardSurvey:
    """What a shard holds, found by reading it once."""

    n_probes: int
    refusals: tuple[Refusal, ...]
    digest: bytes
    """xxh3-128 of its probes in order; the identity of what the next stage reads."""


def read_shard(probe_set: ProbeSet, shard: Shard) -> Iterator[Probe | Refusal]:
    """The probes and refusals of `shard`, row by row."""
    places = {}
    if probe_set.duplicates:
        places = duplicates_between(probe_set.duplicates, shard.first_ordinal, shard.n_rows)
    for source in {piece.source: probe_set.sources[piece.source] for piece in shard.slices}.values():
        _require_unchanged(source)
    ordinal = shard.first_ordinal
    for piece in shard.slices:
        source = probe_set.sources[piece.source]
        for row in _rows_of(piece, source, probe_set):
            first = places.get(ordinal)
            yield probe_or_refusal(
                row,
                part=shard.part,
                source=source,
                wanted=probe_set.format,
                first_place=f"row {first[1]} of {probe_set.sources[first[0]].name}" if first else None,
            )
            ordinal += 1
    if ordinal != shard.first_ordinal + shard.n_rows:
        raise ProbeFileError(
            f"{shard.part} gave {ordinal - shard.first_ordinal:,} rows; {shard.n_rows:,} were registered; "
            "register the probe set again"
        )


def survey_shard(probe_set: ProbeSet, shard: Shard) -> ShardSurvey:
    """Reads the shard once, keeping only its refusals."""
    refusals, chain, probes = [], b"", 0
    for row in read_shard(probe_set, shard):
        if isinstance(row, Refusal):
            refusals.append(row)
        else:
            probes += 1
            chain = digest([chain, *_content(row)])
    return ShardSurvey(probes, tuple(refusals), digest([shard.part.encode(), chain]))


def source_path(source: Source) -> Path:
    """Where the file is, on this machine."""
    return Path(unquote(urlsplit(source.uri).path))


def _rows_of(piece: SourceSlice, source: Source, probe_set: ProbeSet) -> Iterator:
    rows = read_rows(
        source_path(source),
        source.format,
        probe_set.format,
        first_row=piece.first_row,
        byte_offset=piece.byte_offset,
    )
    return islice(rows, piece.n_rows)


def _content(probe: Probe) -> tuple[bytes, ...]:
    if probe.text is not None:
        content = b"text" + probe.text.encode()
    elif probe.messages is not None:
        content = b"chat" + json.dumps(probe.messages).encode()
    else:
        content = b"ids" + np.array(probe.token_ids, dtype="<i4").tobytes()
    return probe.probe_id.encode(), content, probe.source_uri.encode(), struct.pack("<q", probe.source_row)


def _require_unchanged(source: Source) -> None:
    path = source_path(source)
    try:
        stat = path.stat()
    except OSError as error:
        raise ProbeFileError(f"{path} cannot be read: {error}; put it back, or register the probe set again") from error
    if stat.st_size == source.size and stat.st_mtime_ns == source.mtime_ns:
        return
    if stat.st_size != source.size or source_digest(path) != source.digest:
        raise ProbeFileError(
            f"{path} changed since it was registered ({source.size:,} bytes then, {stat.st_size:,} now, or other "
            "content); register it again"
        )
