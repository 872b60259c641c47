"""A SentencePiece-like BPE tokenizer, spaces as U+2581 and unknown characters as bytes, from a GGUF file's lists.

Most such files have scores and no merges: a pair is merged where the joined piece is a token, the best score first
(llama.cpp's `llm_tokenizer_spm`; `generate_merges` of transformers' tokenization_utils_base.py, 5.24). Gemma's scores
are not in the order of its merges, and its ids are (transformers' integrations/gguf/gguf_tokenizer_mapping.py).

A file that puts a space first does not say where: before every stretch of text between special tokens (Llama 2's own
`tokenizer.json`, and llama.cpp), or before the first one unless it begins with a space (transformers' LlamaTokenizer).
Both readings are given, and texts on which they differ are refused where they are encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from resources.checkpoint.byte_level import whole_token
from resources.errors import CheckpointError

SPACE = "\u2581"

FIRST_STRETCH: dict[str, Any] = {
    "normalizer": None,
    "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False},
}
"""The second reading of a file that puts a space first: what of `tokenizer.json` is otherwise."""


def byte_fallback_content(
    tokens: Sequence[str],
    merges: Sequence[Sequence[str]],
    *,
    special: Iterable[int],
    user_defined: Iterable[int],
    unknown: int,
    space_first: bool,
) -> dict[str, Any]:
    """The `tokenizer.json` of the lists."""
    ids = {token: i for i, token in enumerate(tokens)}
    missing = [f"<0x{byte:02X}>" for byte in range(256) if f"<0x{byte:02X}>" not in ids]
    if missing:
        raise CheckpointError(f"the tokenizer has no token for the byte {missing[0]}; expected all 256")
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepended = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replaced]}
    marked = set(special)
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if space_first:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [whole_token(tokens[i], i, special=i in marked) for i in sorted(marked.union(user_defined))],
        "normalizer": prepended if space_first else replaced,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": ids,
            "merges": [list(merge) for merge in merges],
        },
    }


def implied_merges(tokens: Sequence[str], scores: Sequence[float] | None, normal: Iterable[int]) -> list[list[str]]:
    """The merges that make and join the tokens of the ids `normal`, the best score first; None: the first id first."""
    normal = sorted(normal)
    pieces = {tokens[i] for i in normal}
    merges: list[tuple[float, list[str]]] = []
    for i in normal:
        token, score = tokens[i], -float(i) if scores is None else scores[i]
        pairs = ([token[:n], token[n:]] for n in range(1, len(token)))
        merges += [(score, pair) for pair in pairs if pieces.issuperset(pair)]
    made = [("".join(pair), score) for score, pair in merges]
    if len({score for _, score in made}) != len({token for token, _ in made}):
        raise CheckpointError(
            "two tokens of the tokenizer have one score, so that the order of its merges is not sure; use the model's "
            "safetensors folder"
        )
    merges.sort(key=lambda merge: (merge[0], len(merge[1][0])), reverse=True)
    return [pair for _, pair in merges]
