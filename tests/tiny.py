"""Tiny checkpoints for tests: random weights, a real byte-level tokenizer, written in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "h e", "i n", "a n", "Ġ a", "Ġ t", "th e", "Ġt he", "e r", "o n", "r e", "l l", "Ġ Ġ", "an d")


def tiny_gguf(
    path: Path,
    seed: int = 0,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn: int = 128,
    max_positions: int = 512,
    metadata: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Writes a random llama GGUF with the `smollm` tokenizer (273 tokens) to `path` and gives it back.

    `metadata` sets keys over the default ones, `without` leaves keys and tensors out, `tensors` adds or replaces some.
    """
    head_dim = head_dim or hidden // heads
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL_TOKENS, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]
    keys: dict[str, Any] = {
        "general.name": "tiny",
        "llama.block_count": np.uint32(layers),
        "llama.context_length": np.uint32(max_positions),
        "llama.embedding_length": np.uint32(hidden),
        "llama.feed_forward_length": np.uint32(ffn),
        "llama.attention.head_count": np.uint32(heads),
        "llama.attention.head_count_kv": np.uint32(kv_heads),
        "llama.attention.key_length": np.uint32(head_dim),
        "llama.attention.value_length": np.uint32(head_dim),
        "llama.attention.layer_norm_rms_epsilon": np.float32(1e-5),
        "llama.rope.freq_base": np.float32(10000.0),
        "llama.rope.dimension_count": np.uint32(head_dim),
        "llama.vocab_size": np.uint32(len(tokens)),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.eos_token_id": np.uint32(2),
        "tokenizer.ggml.padding_token_id": np.uint32(2),
        "tokenizer.ggml.unknown_token_id": np.uint32(0),
        **(metadata or {}),
    }
    random = np.random.default_rng(seed)

    def linear(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(hidden)).astype(np.float32)

    weights = {
        "token_embd.weight": random.standard_normal((len(tokens), hidden)).astype(np.float32),
        "output_norm.weight": norm(),
    }
    for i in range(layers):
        weights |= {
            f"blk.{i}.attn_norm.weight": norm(),
            f"blk.{i}.attn_q.weight": linear(heads * head_dim, hidden),
            f"blk.{i}.attn_k.weight": linear(kv_heads * head_dim, hidden),
            f"blk.{i}.attn_v.weight": linear(kv_heads * head_dim, hidden),
            f"blk.{i}.attn_output.weight": linear(hidden, heads * head_dim),
            f"blk.{i}.ffn_norm.weight": norm(),
            f"blk.{i}.ffn_gate.weight": linear(ffn, hidden),
            f"blk.{i}.ffn_up.weight": linear(ffn, hidden),
            f"blk.{i}.ffn_down.weight": linear(hidden, ffn),
        }
    weights |= tensors or {}

    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        if key not in without:
            _add(writer, key, value)
    for name, weight in weights.items():
        if name not in without:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case str():
            # The writer wrote the architecture already; a test's own one replaces it.
            writer.kv_data[0].pop(key, None)
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)
        case np.uint32():
            writer.add_uint32(key, int(value))
        case np.float32():
            writer.add_float32(key, float(value))
        case _:
            raise TypeError(f"{key!r} is {value!r}; give a bool, str, list, np.uint32 or np.float32")
