"""Which tokens the proof feeds: ordinary ones, drawn from a seed."""

from __future__ import annotations

import numpy as np

from resources.checkpoint import Tokenizer
from resources.errors import EngineError

FEWEST = 8


class Tokens:
    """Draws from a vocabulary without its special tokens, whose vectors a model may treat as nothing at all."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` is the engine's; a token that either side lacks is never drawn."""
        ids = np.arange(min(vocab_size, tokenizer.vocab_size), dtype=np.int32)
        self._ordinary = np.setdiff1d(ids, np.array(sorted(tokenizer.special_ids), dtype=np.int32))
        if len(self._ordinary) < FEWEST:
            raise EngineError(
                f"the engine's vocabulary has {len(self._ordinary)} tokens that are not special; "
                f"expected at least {FEWEST}"
            )

    def draw(self, count: int, random: np.random.Generator) -> np.ndarray:
        """int32 [count]; distinct where there are enough."""
        return random.choice(self._ordinary, count, replace=count > len(self._ordinary)).astype(np.int32)

    def others(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """For each of `tokens` another one; int32, the same shape."""
        steps = random.integers(1, len(self._ordinary), size=tokens.shape)
        places = np.searchsorted(self._ordinary, tokens)
        return self._ordinary[(places + steps) % len(self._ordinary)].astype(np.int32)
