"""A registered probe set: which files it has, how they are read, where its shards lie. Kept as `<name>.json`.

Contract: plain frozen records; saving is atomic, and loading gives back what was saved.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from resources.errors import ConfigurationError
from resources.records import digest

FileFormat = Literal["jsonl", "parquet", "csv", "text"]

SHARD_DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class ProbeFormat:
    """How the user's files are read. Field names are top-level JSON keys or column names.

    With `token_ids_field` a probe is its given token ids, with `messages_field` a chat, and the text field is not read.
    Without `id_field` a probe's id is the file's name (relative to the registered folder), a colon, and its source row.
    """

    format: Literal["auto", "jsonl", "parquet", "csv", "text"] = "auto"
    """auto: by each file's ending."""
    text_field: str = "text"
    id_field: str | None = None
    token_ids_field: str | None = None
    messages_field: str | None = None

    def __post_init__(self) -> None:
        if self.format != "auto" and self.format not in get_args(FileFormat):
            raise ConfigurationError(f"format is {self.format!r}; expected auto, {', '.join(get_args(FileFormat))}")
        if self.token_ids_field and self.messages_field:
            raise ConfigurationError("token_ids_field and messages_field are both set; a probe is one of the two")

    @property
    def named_fields(self) -> dict[str, str]:
        """The fields that a file must have, each with the option that names it."""
        if self.token_ids_field:
            fields = {self.token_ids_field: "--token-ids-field"}
        elif self.messages_field:
            fields = {self.messages_field: "--messages-field"}
        else:
            fields = {self.text_field: "--text-field"}
        return fields | ({self.id_field: "--id-field"} if self.id_field else {})


@dataclass(frozen=True)
class Source:
    """One file of a probe set, as it was when registered."""

    uri: str
    name: str
    """Relative to what was registered; derived ids begin with it."""
    format: FileFormat
    size: int
    """Bytes."""
    mtime_ns: int
    digest: str
    """xxh3-128 of its bytes, hex."""
    n_rows: int


@dataclass(frozen=True)
class SourceSlice:
    """Consecutive rows of one file."""

    source: int
    """Index into the probe set's sources."""
    first_row: int
    """Source row of the first one."""
    n_rows: int
    byte_offset: int
    """Where the first row begins; 0 for Parquet, which is sought by row."""


@dataclass(frozen=True)
class Shard:
    """One partition of a probe set: at most `shard_rows` rows, which may come from several files."""

    part: str
    first_ordinal: int
    """Number of its first row among all rows of the set."""
    slices: tuple[SourceSlice, ...]

    @property
    def n_rows(self) -> int:
        """Rows of the shard: probes and refusals together."""
        return sum(s.n_rows for s in self.slices)


@dataclass(frozen=True)
class ProbeSet:
    """A registered probe set."""

    name: str
    root: str
    """What was registered: the file's or the folder's own path."""
    format: ProbeFormat
    sources: tuple[Source, ...]
    shards: tuple[Shard, ...]
    duplicates: Path | None
    """The Parquet file of rows whose id an earlier row of the set has (see `duplicates.py`), when there are any."""

    @property
    def n_rows(self) -> int:
        return sum(s.n_rows for s in self.sources)

    def describe(self) -> str:
        """One line for a person."""
        files = self.sources[0].name if len(self.sources) == 1 else f"{len(self.sources):,} files"
        return f"probe set {self.name} ({files}, {self.n_rows:,} rows)"


def save_probe_set(probe_set: ProbeSet, folder: Path) -> None:
    """Writes `<name>.json` into `folder`, atomically."""
    record = asdict(probe_set) | {"duplicates": probe_set.duplicates.name if probe_set.duplicates else None}
    record["digest"] = _record_digest(record)
    target = _index_file(folder, probe_set.name)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, target)


def load_probe_set(folder: Path, name: str) -> ProbeSet:
    """The probe set `name` as registered in `folder`; a ConfigurationError when there is none."""
    path = _index_file(folder, name)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = sorted(p.stem for p in folder.glob("*.json"))
        raise ConfigurationError(
            f"no probe set {name!r} is registered in {folder}; registered: {', '.join(known) or 'none'}; "
            "register its file first"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}; register the probe set again") from error
    try:
        if record.pop("digest") != _record_digest(record):
            raise ConfigurationError(f"{path} was edited or damaged after it was written; register the probe set again")
        return _from_record(record, folder)
    except (KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is not a probe set's index: {error!r}; register the set again") from error


def shard_of(folder: Path, part: str) -> tuple[ProbeSet, Shard]:
    """The probe set and shard of a partition key."""
    probe_set = load_probe_set(folder, part.rpartition(".")[0])
    for shard in probe_set.shards:
        if shard.part == part:
            return probe_set, shard
    raise ConfigurationError(
        f"{probe_set.describe()} has no shard {part!r}; it has {probe_set.shards[0].part} to "
        f"{probe_set.shards[-1].part}; the set was registered again with fewer rows, or the key is mistyped"
    )


def part_key(name: str, number: int) -> str:
    """The partition key of a set's shard."""
    return f"{name}.{number:0{SHARD_DIGITS}d}"


def _index_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _record_digest(record: dict[str, Any]) -> str:
    return digest([json.dumps(record, sort_keys=True).encode()]).hex()


def _from_record(record: dict[str, Any], folder: Path) -> ProbeSet:
    duplicates = record["duplicates"]
    return ProbeSet(
        name=record["name"],
        root=record["root"],
        format=ProbeFormat(**record["format"]),
        sources=tuple(Source(**s) for s in record["sources"]),
        shards=tuple(
            Shard(s["part"], s["first_ordinal"], tuple(SourceSlice(**piece) for piece in s["slices"]))
            for s in record["shards"]
        ),
        duplicates=folder / duplicates if duplicates else None,
    )
