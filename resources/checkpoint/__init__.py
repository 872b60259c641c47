"""Reads a model from disk: configuration, weights under their Hugging Face names, tokenizer.

Contract: opens nothing but the named file, runs nothing that is in it, and refuses (CheckpointError) whatever would
change the mathematics or the token ids and is not handled here. Imports neither Dagster nor any engine.
"""

from resources.checkpoint.config import DecoderConfig
from resources.checkpoint.open import DEFAULT_CHECKPOINT, Checkpoint, open_checkpoint
from resources.checkpoint.tokenizer import Tokenizer, TokenizerPolicy, load_tokenizer

__all__ = [
    "DEFAULT_CHECKPOINT",
    "Checkpoint",
    "DecoderConfig",
    "Tokenizer",
    "TokenizerPolicy",
    "load_tokenizer",
    "open_checkpoint",
]
