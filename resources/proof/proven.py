"""An engine that was proved, and the vectors it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from resources.engine.backend import Engine
from resources.engine.config import EngineConfig, read_engine_config, require_unchanged
from resources.errors import EngineError, EngineRefused
from resources.packing import PackedBatch, pack
from resources.proof.validation import ValidationReport
from resources.records import GatherConvention, Limits


@dataclass(frozen=True, eq=False)
class ProvenEngine:
    """An engine with its frozen convention and the report that proves it. `resources.proof.load` makes one."""

    _engine: Engine
    report: ValidationReport
    tokenizer_id: str
    """Of the tokenizer in the engine's directory."""
    _directory: Path

    def __post_init__(self) -> None:
        if self.report.verdict != "proved":
            raise EngineRefused(self.report.sentence, self.report)

    @property
    def config(self) -> EngineConfig:
        return self._engine.config

    @property
    def engine_id(self) -> str:
        return self.report.engine_id

    @property
    def model_key(self) -> str:
        return self.report.model_key

    @property
    def limits(self) -> Limits:
        return self.config.limits

    @property
    def dtype(self) -> str:
        """ "float32", "float16" or "bfloat16"."""
        return self.config.dtype

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def convention(self) -> GatherConvention:
        return GatherConvention(self.report.convention)

    def extract(self, sequences: Sequence[np.ndarray]) -> np.ndarray:
        """The vector of each sequence's last token: [n_sequences, hidden_size] in `dtype`, bfloat16 as uint16 bits.

        `sequences` are int arrays of token ids, within `limits` together; anything else is an `EngineError`. The result
        is the caller's own. One batch at a time: not for use by two threads at once.
        """
        return self.submit(self.pack(sequences))()

    def pack(self, sequences: Sequence[np.ndarray]) -> PackedBatch:
        """The batch of `sequences`, as `extract` takes them, for `submit`. Leaves a batch that is running alone."""
        _require_batch(sequences, self.config.vocab_size)
        return pack(sequences, self.convention)

    def submit(self, batch: PackedBatch) -> Callable[[], np.ndarray]:
        """Starts what `pack` made and gives back what waits for it and returns the vectors, once, before the next."""
        return self._engine.submit(batch)

    def require_unchanged(self) -> None:
        """Passes only when the engine's directory still is what was proved. Reads all of it: tenths of a second a GB.

        ONNX Runtime maps a model's weights, so that a file which is changed later changes the vectors.
        """
        config = read_engine_config(self._directory)
        if config.engine_id != self.engine_id:
            raise EngineError(
                f"{self._directory} now holds engine {config.engine_id}; expected {self.engine_id}, which was opened; "
                "build the engine again, and run again"
            )
        require_unchanged(self._directory, config)

    def close(self) -> None:
        """Frees everything; a second call does nothing."""
        self._engine.close()

    def __enter__(self) -> ProvenEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _require_batch(sequences: Sequence[np.ndarray], vocab_size: int) -> None:
    if not len(sequences) or not all(len(s) for s in sequences):
        raise EngineError("a batch has no sequence, or one without tokens; expected at least one token in each")
    for index, ids in enumerate(sequences):
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= vocab_size:
            raise EngineError(
                f"sequence {index} has token ids from {lowest} to {highest}; the engine's vocabulary is 0 to "
                f"{vocab_size - 1}; tokenise with the tokenizer that the engine was built for"
            )
