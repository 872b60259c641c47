"""`load`: the only door to an engine's vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from resources.checkpoint import Checkpoint, Tokenizer, load_tokenizer
from resources.engine.backend import open_backend
from resources.engine.config import FOREIGN, EngineConfig, read_engine_config, require_raw_path, require_unchanged
from resources.engine.plugins import PluginLibrary
from resources.errors import CheckpointError, EngineError
from resources.proof.proven import ProvenEngine
from resources.proof.steps import Validation
from resources.proof.tokens import Tokens
from resources.records import GatherConvention


def load(
    directory: Path,
    *,
    engine_id: str | None = None,
    checkpoint: Checkpoint | None = None,
    threads: int | None = None,
    plugins: Sequence[PluginLibrary] = (),
    progress: Callable[[str], None] | None = None,
) -> ProvenEngine:
    """Opens the engine in `directory` and proves its gather convention, or raises; nothing is left open then.

    `EngineRefused` carries the report with whatever evidence there is; a plain `EngineError` means that there is no
    engine to speak of: a missing file, an unreadable plan; or another one than `engine_id`, if given. With the
    `checkpoint` that it was built from, which takes seconds for each billion weights, its vectors are compared with
    those of an independent forward pass too. `threads` are ONNX Runtime's; `plugins` are the libraries that a TensorRT
    plan needs. `progress` is told, in words, what is being done.
    """
    config = read_engine_config(directory)
    if engine_id not in (None, config.engine_id):
        raise EngineError(
            f"{directory} holds engine {config.engine_id}; expected {engine_id}, which was registered; "
            "build or register the engine again"
        )
    _require_origin(checkpoint, config)
    validation = Validation(directory, config, threads, progress or (lambda _: None))
    with validation.refusing("key-value-cache"):
        require_raw_path(config)
    with validation.refusing("changed-files"):
        require_unchanged(directory, config)
        tokenizer = _tokenizer(directory, config)
    validation.tokenizer = tokenizer
    validation.require_room(config.limits)
    tokens = Tokens(tokenizer, config.vocab_size)
    validation.progress(f"opening the engine {config.engine_id[:16]}")
    with ExitStack() as opened:
        backend = open_backend(directory, config, threads=threads, plugins=plugins)
        opened.callback(backend.close)
        engine = validation.bind(backend)
        opened.callback(engine.close)
        convention = validation.validate(engine, tokens, tokenizer, checkpoint)
        report = validation.report("proved", _proved(convention))
        proven = ProvenEngine(engine, report, tokenizer.tokenizer_id, directory)
        opened.pop_all()
    return proven


def _tokenizer(directory: Path, config: EngineConfig) -> Tokenizer:
    try:
        tokenizer = load_tokenizer(directory)
    except CheckpointError as error:
        advice = "" if config.provenance else "; register a foreign engine with the engine asset's `directory`"
        raise EngineError(f"{error}{advice}") from error
    expected = config.provenance.tokenizer_id if config.provenance else tokenizer.tokenizer_id
    if tokenizer.tokenizer_id != expected:
        raise EngineError(
            f"the tokenizer in {directory} is {tokenizer.tokenizer_id}; expected {expected}, which config.json names; "
            "build the engine again"
        )
    return tokenizer


def _require_origin(checkpoint: Checkpoint | None, config: EngineConfig) -> None:
    if checkpoint is None or config.provenance is None or config.provenance.graph_version == FOREIGN:
        return
    if checkpoint.digest != config.provenance.checkpoint_digest:
        raise EngineError(
            f"engine {config.engine_id} was built from checkpoint {config.provenance.checkpoint_digest}; "
            f"{checkpoint.name} is {checkpoint.digest}; give the one that it was built from, or none"
        )


def _proved(convention: GatherConvention) -> str:
    return (
        f"last_token_ids is the {convention.value.replace('_', ' ')}: seen in the micro-batch and proved by dependence"
    )
