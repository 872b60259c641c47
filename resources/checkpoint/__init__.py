"""Reads a model from disk: configuration, weights under canonical names, tokenizer.

Contract: opens nothing but the named file or folder (a hub id is one in the hub cache, downloaded first where it is not
there), unpickles nothing and runs nothing that is in it but the chat template, in a process of its own. Whatever would
change the mathematics or the token ids and is not handled is refused (CheckpointError). Imports neither Dagster nor any
engine.
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
