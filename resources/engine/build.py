"""A checkpoint -> an engine directory.

Contract: an engine is written to a temporary folder and renamed into place when whole, so that a folder named by an
engine's id always holds that engine. Building the same thing twice gives the same folder.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

from resources.checkpoint import Checkpoint
from resources.checkpoint.tokenizer import Tokenizer
from resources.engine.config import read_engine_record, write_engine_config
from resources.errors import EngineError
from resources.graph import GRAPH_VERSION, write_packed_graph
from resources.records import TAP, EngineRecord, Limits, model_key

FOLDER_CHARACTERS = 16
"""An engine's folder is named by this many leading characters of its id."""

GRAPH_FILE = "model.onnx"


def build_engine(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    engines_folder: Path,
    *,
    backend: str = "onnxruntime",
    precision: str = "float32",
    limits: Limits,
) -> EngineRecord:
    """Builds an engine under `engines_folder` and gives its record; one that is there already is kept."""
    if backend not in _BUILDERS:
        raise EngineError(f"backend {backend!r} cannot be built; expected one of {sorted(_BUILDERS)}")
    longest = checkpoint.config.max_position_embeddings
    if limits.max_input_len > longest:
        raise EngineError(
            f"max_input_len is {limits.max_input_len}; the checkpoint's positions end at {longest}; lower it"
        )
    engines_folder.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=engines_folder))
    try:
        plan, versions = _BUILDERS[backend](checkpoint, building, precision)
        tokenizer.save(building)
        write_engine_config(
            building,
            backend=backend,
            plan=plan,
            pretrained=_pretrained(checkpoint, precision),
            limits=limits,
            provenance={
                "model_key": model_key(
                    checkpoint_digest=checkpoint.digest,
                    graph_version=GRAPH_VERSION,
                    tokenizer_id=tokenizer.tokenizer_id,
                    tap=TAP,
                    dtype=precision,
                ),
                "checkpoint_digest": checkpoint.digest,
                "tokenizer_id": tokenizer.tokenizer_id,
                "graph_version": GRAPH_VERSION,
                "versions": versions,
            },
        )
        return read_engine_record(_put_in_place(building, engines_folder))
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _build_for_onnxruntime(checkpoint: Checkpoint, directory: Path, precision: str) -> tuple[str, dict[str, str]]:
    """Writes the plan into `directory`; gives its file name and the versions of what wrote it."""
    if precision not in ("float32", "float16"):
        raise EngineError(f"precision is {precision!r}; ONNX Runtime on the CPU runs float32 and float16")
    write_packed_graph(checkpoint, directory / GRAPH_FILE, precision=cast(Literal["float32", "float16"], precision))
    return GRAPH_FILE, {name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime")}


_BUILDERS: dict[str, Callable[[Checkpoint, Path, str], tuple[str, dict[str, str]]]] = {
    "onnxruntime": _build_for_onnxruntime
}


def _pretrained(checkpoint: Checkpoint, precision: str) -> dict[str, object]:
    config = checkpoint.config
    return {
        "architecture": config.architecture,
        "dtype": precision,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "max_position_embeddings": config.max_position_embeddings,
    }


def _put_in_place(building: Path, engines_folder: Path) -> Path:
    target = engines_folder / read_engine_record(building).engine_id[:FOLDER_CHARACTERS]
    building.chmod(0o755)
    for path in (*building.iterdir(), building):
        _sync(path)
    try:
        building.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    else:
        _sync(engines_folder)
    return target


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
