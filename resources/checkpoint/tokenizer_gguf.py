"""The tokenizer of a GGUF file.

Contract: reads the `tokenizer.*` metadata; a key, token kind or way of cutting text that is not handled is an error,
never skipped, since a wrong split gives other ids without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resources.checkpoint.byte_fallback import FIRST_STRETCH, SPACE, byte_fallback_content, implied_merges
from resources.checkpoint.byte_level import SPLITS, byte_level_content
from resources.checkpoint.gguf_file import GgufFile
from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.tokenizer import Tokenizer
from resources.checkpoint.vocabulary import Vocabulary
from resources.errors import CheckpointError

PREFIX = "tokenizer.ggml."

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""llama.cpp's token kinds."""

TEMPLATE = "tokenizer.chat_template"
"""Other keys begin so too: the named templates beside the default one."""


def load_gguf_tokenizer(file: GgufFile, policy: TokenizerPolicy) -> Tokenizer:
    """The tokenizer of `file` under `policy`."""
    return Tokenizer(read_vocabulary(file), policy)


def read_vocabulary(file: GgufFile) -> Vocabulary:
    """The vocabulary of a GGUF file."""
    model = file.value(f"{PREFIX}model", str, None)
    if model is None:
        raise CheckpointError(f"{file.path} has no tokenizer ('{PREFIX}model'); convert the model with its tokenizer")
    if model not in _READERS:
        raise CheckpointError(
            f"{file.path} has a {model!r} tokenizer; supported: 'gpt2' (byte-level BPE), 'llama' (BPE with bytes to "
            "fall back to)"
        )
    keys = (k for k in file.keys if k.startswith("tokenizer.") and not k.startswith(TEMPLATE))
    if unknown := [k for k in keys if k not in _KNOWN and not k.endswith("_token_id")]:
        raise CheckpointError(
            f"{file.path} sets {', '.join(map(repr, unknown))}, which may change the token ids and is not handled; use "
            "the model's safetensors folder"
        )
    tokens = tuple(file.value(f"{PREFIX}tokens", list))
    kinds = file.value(f"{PREFIX}token_type", list)
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise CheckpointError(
            f"{file.path} has {len(tokens)} tokens, {len(set(tokens))} of them different, and {len(kinds)} kinds; "
            "expected three equal numbers"
        )
    lists = _Lists(file, tokens, kinds, {name: _token_id(file, name, len(tokens)) for name in _NAMED})
    return _READERS[model](lists)


@dataclass(frozen=True)
class _Lists:
    file: GgufFile
    tokens: tuple[str, ...]
    kinds: list[int]
    named: dict[str, int | None]
    """By GGUF's name."""

    def of_kind(self, *kinds: int) -> list[int]:
        return [i for i, kind in enumerate(self.kinds) if kind in kinds]

    def require_kinds(self, *kinds: int) -> None:
        if odd := sorted(set(self.kinds) - set(kinds)):
            raise CheckpointError(f"{self.file.path} has tokens of kind {odd}; such a tokenizer has no such tokens")

    def vocabulary(self, *, add_bos: bool, **rest: Any) -> Vocabulary:
        """`add_bos` is what llama.cpp takes a file to mean that does not say; it counts where there is a BOS to add."""
        named = self.named
        return Vocabulary(
            bos_id=named["bos"],
            eos_id=named["eos"],
            pad_id=named["padding"],
            unknown_id=named["unknown"],
            add_bos=self.file.value(f"{PREFIX}add_bos_token", bool, add_bos and named["bos"] is not None),
            add_eos=self.file.value(f"{PREFIX}add_eos_token", bool, False),
            chat_template=self.file.value(TEMPLATE, str, None),
            special_tokens={_NAMED[name]: self.tokens[i] for name, i in named.items() if i is not None},
            **rest,
        )


def _byte_level(lists: _Lists) -> Vocabulary:
    file = lists.file
    for flag in ("add_space_prefix", "remove_extra_whitespaces"):
        if file.value(f"{PREFIX}{flag}", bool, False):
            raise CheckpointError(
                f"'{PREFIX}{flag}' of {file.path} is set; byte-level BPE here keeps spaces as they are"
            )
    lists.require_kinds(NORMAL, CONTROL, USER_DEFINED, UNUSED)
    split = file.value(f"{PREFIX}pre", str)
    content = byte_level_content(
        lists.tokens,
        tuple(_merge(line, file) for line in file.value(f"{PREFIX}merges", list)),
        split,
        control=lists.of_kind(CONTROL),
        user_defined=lists.of_kind(USER_DEFINED),
    )
    return lists.vocabulary(content=content, split=split, add_bos=SPLITS[split].add_bos)


def _byte_fallback(lists: _Lists) -> Vocabulary:
    file = lists.file
    architecture = file.value("general.architecture", str)
    # A Phi-3's special tokens take the spaces behind them with them, which its GGUF file does not say.
    if architecture == "phi3":
        raise CheckpointError(f"{file.path} has a 'llama' tokenizer, of a Phi-3; use the model's safetensors folder")
    if file.value(f"{PREFIX}remove_extra_whitespaces", bool, False):
        raise CheckpointError(
            f"'{PREFIX}remove_extra_whitespaces' of {file.path} is set, which is not handled; use the model's "
            "safetensors folder"
        )
    lists.require_kinds(NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE)
    scores = file.value(f"{PREFIX}scores", list)
    unknown = lists.of_kind(UNKNOWN)
    if len(scores) != len(lists.tokens) or len(unknown) != 1:
        raise CheckpointError(
            f"{file.path} has {len(lists.tokens)} tokens, {len(scores)} scores and {len(unknown)} unknown tokens; "
            "expected two equal numbers and one"
        )
    # llama.cpp's converter writes a user-defined run of U+2581 as spaces; no text holds it whole, and merges make it.
    runs = [i for i in lists.of_kind(USER_DEFINED) if not lists.tokens[i].strip(" ")]
    tokens = tuple(SPACE * len(token) if i in set(runs) else token for i, token in enumerate(lists.tokens))
    space_first = file.value(f"{PREFIX}add_space_prefix", bool, True)
    given = file.value(f"{PREFIX}merges", list, None)
    if given is None:
        order = None if architecture.startswith("gemma") else scores
        merges = implied_merges(tokens, order, [*lists.of_kind(NORMAL), *runs])
    else:
        merges = [list(_merge(line, file)) for line in given]
    content = byte_fallback_content(
        tokens,
        merges,
        special=lists.of_kind(CONTROL, UNKNOWN),
        user_defined=sorted({*lists.of_kind(USER_DEFINED)} - {*runs}),
        unknown=unknown[0],
        space_first=space_first,
    )
    return lists.vocabulary(content=content, also_read=FIRST_STRETCH if space_first else {}, add_bos=True)


_READERS = {"gpt2": _byte_level, "llama": _byte_fallback}

_NAMED = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
"""GGUF's names of special tokens, with those of transformers."""

_KNOWN = {
    PREFIX + name
    for name in (
        *("model", "pre", "tokens", "token_type", "scores", "merges"),
        *("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces"),
    )
}


def _merge(line: str, file: GgufFile) -> tuple[str, str]:
    parts = line.split(" ")
    if len(parts) != 2:
        raise CheckpointError(f"{file.path} has the merge {line!r}; expected two tokens with a space between")
    return parts[0], parts[1]


def _token_id(file: GgufFile, name: str, n_tokens: int) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    found = file.value(key, int, None)
    if found is not None and not 0 <= found < n_tokens:
        raise CheckpointError(f"{key!r} of {file.path} is {found}; expected an id below {n_tokens}")
    return found
