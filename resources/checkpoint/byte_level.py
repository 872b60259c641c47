"""A byte-level BPE tokenizer from its lists, under llama.cpp's name of how it cuts a text before merging.

A GGUF file names its cut and does not hold it. Expressions, and which of them ignore merges for a word that is itself a
token: `llm_tokenizer_bpe` and `llama_vocab::impl::load` of llama.cpp's src/llama-vocab.cpp, in the spelling of the
`tokenizer.json` that they come from; the normal form is that file's too, and llama.cpp leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resources.errors import CheckpointError


@dataclass(frozen=True)
class Split:
    """How a text is cut into the pieces that merges stay inside of."""

    expression: str | None = None
    """None for GPT-2's own, which the library's byte level has built in."""
    single_digits: bool = False
    nfc: bool = False
    """Texts are brought into Unicode's normal form C first."""
    ignore_merges: bool = False
    """A piece that is itself a token is not cut, whatever the merges say."""
    add_bos: bool = False
    """What a file means that does not say."""


_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLITS: Mapping[str, Split] = {
    # Every digit by itself, then GPT-2's split. transformers 5.24 leaves the digits out when it loads a GGUF file, and
    # so cuts "a  1" otherwise. StarCoder's and Granite's files say starcoder and refact.
    "smollm": Split(single_digits=True),
    "starcoder": Split(single_digits=True),
    "refact": Split(single_digits=True),
    "gpt-2": Split(),
    "olmo": Split(nfc=True),
    "llama-bpe": Split(_LLAMA3, ignore_merges=True, add_bos=True),
    "qwen2": Split(_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"), nfc=True),
    "tekken": Split(_TEKKEN, ignore_merges=True, add_bos=True),
}
"""By llama.cpp's name. 'default' is not among them: it is what a converter writes that did not know the tokenizer."""


def byte_level_content(
    tokens: Sequence[str],
    merges: Sequence[tuple[str, str]],
    split: str,
    *,
    control: Iterable[int],
    user_defined: Iterable[int],
) -> dict[str, Any]:
    """The `tokenizer.json` of the lists: `tokens[i]` is the token of id i in GPT-2's byte alphabet; `control` and
    `user_defined` are the ids of tokens that are matched whole, the first of them special."""
    if split not in SPLITS:
        raise CheckpointError(f"the tokenizer splits text as {split!r}; supported: {', '.join(SPLITS)}")
    rules = SPLITS[split]
    ids = {token: i for i, token in enumerate(tokens)}
    for left, right in merges:
        if not {left, right, left + right} <= ids.keys():
            raise CheckpointError(
                f"the tokenizer's merges do not fit its vocabulary: {left!r} with {right!r}; convert it again"
            )
    special = set(control)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [whole_token(tokens[i], i, special=i in special) for i in sorted(special.union(user_defined))],
        "normalizer": {"type": "NFC"} if rules.nfc else None,
        "pre_tokenizer": _pre_tokenizer(rules),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rules.ignore_merges,
            "vocab": ids,
            "merges": [list(merge) for merge in merges],
        },
    }


def _pre_tokenizer(rules: Split) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if rules.single_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    if rules.expression is not None:
        steps.append({"type": "Split", "pattern": {"Regex": rules.expression}, "behavior": "Isolated", "invert": False})
    steps.append(
        {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": rules.expression is None,
        }
    )
    return {"type": "Sequence", "pretokenizers": steps}


def whole_token(token: str, token_id: int, *, special: bool) -> dict[str, Any]:
    """An entry of `added_tokens`: a token that is matched whole, in the text as it was given."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": token_id, "content": token, **flags}
