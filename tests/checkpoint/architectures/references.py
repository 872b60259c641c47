"""The tiny checkpoints under tests/fixtures/checkpoints, and the vectors that transformers computes from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.fixtures.checkpoint_configs import CONFIGS

CHECKPOINTS = Path(__file__).parents[2] / "fixtures" / "checkpoints"

NAMES = sorted(CONFIGS)


@dataclass(frozen=True)
class Reference:
    """Sequences, and for each the vector that transformers gives for it alone: float32 [n, hidden]."""

    sequences: tuple[np.ndarray, ...]
    vectors: np.ndarray

    @staticmethod
    def read(name: str, folder: Path = CHECKPOINTS) -> Reference:
        with np.load(folder / name / "reference.npz", allow_pickle=False) as file:
            return Reference(tuple(file[f"ids_{length}"] for length in file["lengths"]), file["vectors"])

    def up_to(self, length: int) -> Reference:
        """Those of at most `length` tokens."""
        kept = [i for i, ids in enumerate(self.sequences) if len(ids) <= length]
        return Reference(tuple(self.sequences[i] for i in kept), self.vectors[kept])


def read_values(name: str, file: str = "config.json") -> dict[str, Any]:
    """The configuration of a checkpoint, as it stands in `file`."""
    return json.loads((CHECKPOINTS / name / file).read_text(encoding="utf-8"))
