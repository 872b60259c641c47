"""Where a lake lies: a folder of a local file system, or a prefix of an object store (`s3://bucket/prefix`).

Contract: `place` gives a `pathlib.Path` or an `ObjectPath`, which has the few of its methods that the store uses, under
their names. An object appears whole or not at all, and is durable once its upload has returned, so there is nothing to
rename or to fsync. Access is configured by AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and their like, for delta-rs and for
this module alike: both use the library object_store. No Dagster.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

READ_AHEAD = 1 << 20
"""Bytes that a reader of an object asks for at once, at least."""


def place(lake: Path | str) -> Place:
    """The lake's own place: of a URL an `ObjectPath`, of anything else a `Path`."""
    return ObjectPath(lake.rstrip("/")) if isinstance(lake, str) and "://" in lake else Path(lake)


def source(path: Place) -> Path | io.BufferedReader:
    """What pyarrow reads a file from."""
    return path if isinstance(path, Path) else path.open()


@dataclass(frozen=True)
class ObjectStat:
    """What tells one object from another that took its place."""

    st_size: int
    st_mtime_ns: int
    st_ino: str
    """The object's entity tag."""


@dataclass(frozen=True)
class ObjectPath:
    """An object or a prefix of a bucket, by its URL."""

    url: str

    def __truediv__(self, name: str | Path) -> ObjectPath:
        return ObjectPath(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    def __fspath__(self) -> str:
        """For delta-rs, which takes a URL where it takes a path."""
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def stat(self) -> ObjectStat:
        """Of an object. Raises `FileNotFoundError`."""
        store, key = self._located()
        found = store.head(key)
        return ObjectStat(found["size"], round(found["last_modified"].timestamp() * 1e9), found["e_tag"] or "")

    def is_dir(self) -> bool:
        """Whether there is an object below it."""
        listed = self._listed()
        return bool(listed["objects"] or listed["common_prefixes"])

    def iterdir(self) -> Iterator[ObjectPath]:
        """The prefixes below it."""
        bucket = self._bucket_url()
        return (ObjectPath(f"{bucket}/{prefix}") for prefix in self._listed()["common_prefixes"])

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: a prefix is there when an object is."""

    def read_text(self) -> str:
        """The whole object. Raises `FileNotFoundError`."""
        store, key = self._located()
        return bytes(store.get(key).bytes()).decode()

    def open(self) -> io.BufferedReader:
        """The object for reading at any place. Raises `FileNotFoundError`."""
        import obstore

        store, key = self._located()
        return io.BufferedReader(_Raw(obstore.open_reader(store, key, buffer_size=READ_AHEAD)), READ_AHEAD)

    def upload(self, file: Path) -> None:
        """Puts a file's content in the object's place, in parts where it is large."""
        store, key = self._located()
        store.put(key, file)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Removes the object. One that is not there is no error, as object stores have it."""
        store, key = self._located()
        store.delete(key)

    def filesystem(self) -> Any:
        """The store as fsspec has it, for a library that takes one; it reads URLs."""
        from obstore.fsspec import FsspecStore

        protocol: Any = self.url.partition("://")[0]
        return FsspecStore(protocol)

    def _listed(self) -> Any:
        store, key = self._located()
        return store.list_with_delimiter(key)

    def _bucket_url(self) -> str:
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    def _located(self) -> tuple[Any, str]:
        return _store(self._bucket_url()), self.url.partition("://")[2].partition("/")[2]


Place = Path | ObjectPath


@lru_cache(maxsize=8)
def _store(bucket_url: str) -> Any:
    from obstore.store import from_url

    return from_url(bucket_url)


class _Raw(io.RawIOBase):
    """An obstore reader as Python's own raw file."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = memoryview(self._reader.read(len(view)))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())
