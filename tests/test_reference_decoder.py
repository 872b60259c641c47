"""The float64 decoder against transformers' vectors, family by family: what the head check holds engines to."""

from pathlib import Path

import numpy as np
import pytest

from resources.checkpoint import open_checkpoint
from resources.proof.vectors import distances
from resources.reference_decoder import last_states

CHECKPOINTS = Path(__file__).parent / "fixtures" / "checkpoints"


@pytest.mark.parametrize("name", sorted(p.parent.name for p in CHECKPOINTS.glob("*/reference.npz")))
def test_its_states_are_transformers(name):
    reference = np.load(CHECKPOINTS / name / "reference.npz")
    checkpoint = open_checkpoint(str(CHECKPOINTS / name))
    # An engine takes none that is longer.
    held = reference["lengths"] <= checkpoint.config.max_position_embeddings
    states = last_states(checkpoint, [reference[f"ids_{length}"] for length in reference["lengths"][held]])
    assert held.sum() >= 4
    assert distances(states, reference["vectors"][held]).max() < 1e-5
