"""An engine directory's `config.json`: read, checked and written.

Contract: the layout is TensorRT-LLM's (`pretrained_config`, `build_config` with `kv_cache_type` and `plugin_config`),
plus a `fabric` section for engines that this project built: backend, plan, provenance, and the digest of every file
beside it. `engine_id` is the digest of `config.json`, and so of all of them. A directory without that section is a
foreign engine: TensorRT's `rank0.engine`, whose id takes in the plan itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.errors import EngineError
from resources.records import ITEM_SIZE, TAP, EngineRecord, Limits, digest, file_digest, model_key

CONFIG_FILE = "config.json"
FOREIGN_PLAN = "rank0.engine"
FOREIGN = "foreign"
"""The graph version of an engine whose graph this project did not write."""


@dataclass(frozen=True)
class Provenance:
    """What one of this project's engines was built from."""

    model_key: str
    checkpoint_digest: str
    tokenizer_id: str
    graph_version: str
    versions: Mapping[str, str]
    files: Mapping[str, str]
    """File name -> xxh3-128 of its content, of every file of the directory except `config.json`."""


@dataclass(frozen=True)
class EngineConfig:
    """What an engine says of itself."""

    engine_id: str
    backend: str
    plan: str
    """File name of the plan or graph."""
    dtype: str
    hidden_size: int
    vocab_size: int
    num_hidden_layers: int
    reach: int | None
    """How many tokens back a vector can depend on, its own with them, where windows in every layer bound it."""
    limits: Limits
    kv_cache_type: str | None
    """In lower case; None where the configuration does not say."""
    packed: bool
    """Takes tokens laid end to end (TensorRT-LLM's `remove_input_padding`)."""
    world_size: int
    provenance: Provenance | None
    """None for a foreign engine."""


def read_engine_config(directory: Path) -> EngineConfig:
    """Parses `directory`'s configuration; a missing or malformed field is an `EngineError` that names it.

    Reads a foreign engine's whole plan, for its id. Whether the engine can be used is `require_raw_path`'s question.
    """
    path = directory / CONFIG_FILE
    try:
        content = path.read_bytes()
        document = json.loads(content)
    except FileNotFoundError as error:
        raise EngineError(f"{path} is missing; expected an engine directory; build one with build_engine") from error
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be read: {error}; expected JSON; build the engine again") from error
    pretrained, build = _Fields(path, document, "pretrained_config"), _Fields(path, document, "build_config")
    fabric = _Fields(path, document, "fabric") if isinstance(document, dict) and "fabric" in document else None
    dtype = pretrained.get("dtype", str)
    if dtype not in ITEM_SIZE:
        raise EngineError(
            f"{path}: pretrained_config.dtype is {dtype!r}; expected one of {sorted(ITEM_SIZE)}; build it again"
        )
    kv_cache_type = build.get("kv_cache_type", str, default=None)
    return EngineConfig(
        engine_id=digest([content] if fabric else [content, _file_digest(directory / FOREIGN_PLAN).encode()]).hex(),
        backend=fabric.get("backend", str) if fabric else "tensorrt",
        plan=fabric.get("plan", str) if fabric else FOREIGN_PLAN,
        dtype=dtype,
        hidden_size=pretrained.size("hidden_size"),
        vocab_size=pretrained.size("vocab_size"),
        num_hidden_layers=pretrained.size("num_hidden_layers"),
        reach=pretrained.size("attention_reach", default=None),
        limits=Limits(*(build.size(f) for f in ("max_batch_size", "max_num_tokens", "max_input_len"))),
        kv_cache_type=kv_cache_type.lower().removeprefix("kvcachetype.") if kv_cache_type else None,
        packed=build.get("plugin_config", dict, default={}).get("remove_input_padding") is True,
        world_size=pretrained.get("mapping", dict, default={}).get("world_size", 1),
        provenance=_provenance(fabric) if fabric else None,
    )


def require_raw_path(config: EngineConfig) -> None:
    """Passes only an engine that one raw forward pass over packed tokens serves; says why and what to build if not."""
    if config.kv_cache_type != "disabled":
        raise EngineError(
            f"build_config.kv_cache_type is {config.kv_cache_type or 'not given'}; expected disabled: an engine with a "
            "key-value cache needs an executor that owns it, and spends memory on tokens that are never generated; "
            "build it again with `--kv_cache_type disabled` (trtllm-build), or with this project's engine asset"
        )
    if not config.packed:
        raise EngineError(
            "build_config.plugin_config.remove_input_padding is not true; expected an engine over packed tokens; "
            "build it again with `--remove_input_padding enable`"
        )
    if config.world_size != 1:
        raise EngineError(
            f"pretrained_config.mapping.world_size is {config.world_size}; expected 1: this project runs an engine "
            "on one device; build it again without tensor or pipeline parallelism"
        )


def require_unchanged(directory: Path, config: EngineConfig) -> None:
    """Passes only when the folder holds the files that were recorded at build time, each with its content, and no more.

    Of a foreign engine nothing was recorded.
    """
    if config.provenance is None:
        return
    recorded, present = {CONFIG_FILE, *config.provenance.files}, set(os.listdir(directory))
    if recorded != present or config.plan not in config.provenance.files:
        raise EngineError(
            f"{directory} holds {sorted(present)}, with {config.plan} for a plan; expected {sorted(recorded)}, which "
            "were recorded when the engine was built, and the plan among them; take out what was put there, or build "
            "the engine again"
        )
    for name, expected in config.provenance.files.items():
        seen = _file_digest(directory / name)
        if seen != expected:
            raise EngineError(
                f"{directory / name} has digest {seen}; expected {expected}, recorded when the engine was built; "
                "build the engine again"
            )


def foreign_model_key(config: EngineConfig, tokenizer_id: str) -> str:
    """The `model_key` of a foreign engine, whose plan stands in for the checkpoint and the graph that made it."""
    return model_key(
        checkpoint_digest=config.engine_id,
        graph_version=FOREIGN,
        tokenizer_id=tokenizer_id,
        tap=TAP,
        dtype=config.dtype,
    )


def write_engine_config(
    directory: Path,
    *,
    backend: str,
    plan: str,
    pretrained: Mapping[str, Any],
    limits: Limits,
    provenance: Mapping[str, Any],
    kv_cache_type: str = "DISABLED",
) -> None:
    """Writes `config.json`, last: it digests the other files.

    `provenance` has `Provenance`'s fields but `files`, and whatever else the builder has to say.
    """
    document = {
        "pretrained_config": dict(pretrained),
        "build_config": {
            "max_batch_size": limits.max_batch_size,
            "max_num_tokens": limits.max_num_tokens,
            "max_input_len": limits.max_input_len,
            "kv_cache_type": kv_cache_type,
            "plugin_config": {"remove_input_padding": True},
        },
    }
    _write(directory, document, {"backend": backend, "plan": plan, **provenance})


def write_adopted_config(directory: Path, document: Mapping[str, Any], *, provenance: Mapping[str, Any]) -> None:
    """Writes `document`, a foreign engine's own configuration, with a `fabric` section; last, as above."""
    _write(directory, document, {"backend": "tensorrt", "plan": FOREIGN_PLAN, **provenance})


def read_engine_record(directory: Path) -> EngineRecord:
    """The record of an engine that this project built; its `directory` is the folder's name."""
    config = read_engine_config(directory)
    if config.provenance is None:
        raise EngineError(
            f"{directory / CONFIG_FILE} has no fabric section; expected an engine that this project built; register it "
            "with `fabric extract --engine`, which makes one of it"
        )
    return EngineRecord(
        engine_id=config.engine_id,
        model_key=config.provenance.model_key,
        directory=directory.name,
        backend=config.backend,
        precision=config.dtype,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        limits=config.limits,
        checkpoint_digest=config.provenance.checkpoint_digest,
        tokenizer_id=config.provenance.tokenizer_id,
        graph_version=config.provenance.graph_version,
        versions=config.provenance.versions,
    )


def _write(directory: Path, document: Mapping[str, Any], fabric: Mapping[str, Any]) -> None:
    files = {p.name: _file_digest(p) for p in sorted(directory.iterdir()) if p.name != CONFIG_FILE}
    whole = {**document, "fabric": {**fabric, "files": files}}
    (directory / CONFIG_FILE).write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _provenance(fabric: _Fields) -> Provenance:
    return Provenance(
        model_key=fabric.get("model_key", str),
        checkpoint_digest=fabric.get("checkpoint_digest", str),
        tokenizer_id=fabric.get("tokenizer_id", str),
        graph_version=fabric.get("graph_version", str),
        versions=fabric.get("versions", dict),
        files=fabric.get("files", dict),
    )


class _Fields:
    """One section of the document, whose fields are asked for by name and type."""

    def __init__(self, path: Path, document: Any, section: str) -> None:
        self._where = f"{path}: {section}"
        fields = document.get(section) if isinstance(document, dict) else None
        if not isinstance(fields, dict):
            raise EngineError(f"{self._where} is missing; expected TensorRT-LLM's configuration layout; build it again")
        self._fields: dict[str, Any] = fields

    def get(self, name: str, kind: type, **default: Any) -> Any:
        value = self._fields.get(name)
        if value is None and default:
            return default["default"]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise EngineError(f"{self._where}.{name} is {value!r}; expected {kind.__name__}; build the engine again")
        return value

    def size(self, name: str, **default: Any) -> Any:
        value = self.get(name, int, **default)
        if value is not None and value < 1:
            raise EngineError(f"{self._where}.{name} is {value}; expected at least 1; build the engine again")
        return value


def _file_digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error}; expected a file of the engine; build it again") from error
