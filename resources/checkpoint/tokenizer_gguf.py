"""The tokenizer of a GGUF file.

Contract: reads the `tokenizer.*` metadata; a key, token kind or way of cutting text that is not handled is an error,
never skipped, since a wrong split gives other ids without a word.
"""

from __future__ import annotations

from resources.checkpoint.byte_level import SPLITS, byte_level_content
from resources.checkpoint.gguf_file import GgufFile
from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.tokenizer import Tokenizer
from resources.checkpoint.vocabulary import Vocabulary
from resources.errors import CheckpointError

PREFIX = "tokenizer.ggml."

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""llama.cpp's token kinds that a byte-level vocabulary may hold."""

TEMPLATE = "tokenizer.chat_template"


def load_gguf_tokenizer(file: GgufFile, policy: TokenizerPolicy) -> Tokenizer:
    """The tokenizer of `file` under `policy`."""
    return Tokenizer(read_vocabulary(file), policy)


def read_vocabulary(file: GgufFile) -> Vocabulary:
    """The vocabulary of a GGUF file."""
    model = file.value(f"{PREFIX}model", str, None)
    if model is None:
        raise CheckpointError(f"{file.path} has no tokenizer ('{PREFIX}model'); convert the model with its tokenizer")
    if model != "gpt2":
        raise CheckpointError(f"{file.path} has a {model!r} tokenizer; supported: 'gpt2' (byte-level BPE)")
    unknown = [k for k in file.keys if k.startswith("tokenizer.") and k not in _KNOWN and not k.endswith("_token_id")]
    if unknown:
        raise CheckpointError(
            f"{file.path} sets {', '.join(map(repr, unknown))}, which may change the token ids and is not handled"
        )
    if file.value(f"{PREFIX}add_space_prefix", bool, False):
        raise CheckpointError(f"'{PREFIX}add_space_prefix' of {file.path} is set; byte-level BPE here adds no space")
    tokens = tuple(file.value(f"{PREFIX}tokens", list))
    kinds = file.value(f"{PREFIX}token_type", list)
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise CheckpointError(
            f"{file.path} has {len(tokens)} tokens, {len(set(tokens))} of them different, and {len(kinds)} kinds; "
            "expected three equal numbers"
        )
    odd = sorted(set(kinds) - {NORMAL, CONTROL, USER_DEFINED, UNUSED})
    if odd:
        raise CheckpointError(f"{file.path} has tokens of kind {odd}; byte-level BPE has no such tokens")
    split = file.value(f"{PREFIX}pre", str)
    content = byte_level_content(
        tokens,
        tuple(_merge(line, file) for line in file.value(f"{PREFIX}merges", list)),
        split,
        control=(i for i, kind in enumerate(kinds) if kind == CONTROL),
        user_defined=(i for i, kind in enumerate(kinds) if kind == USER_DEFINED),
    )
    named = {name: _token_id(file, name, len(tokens)) for name in _NAMED}
    return Vocabulary(
        content=content,
        split=split,
        bos_id=named["bos"],
        eos_id=named["eos"],
        pad_id=named["padding"],
        unknown_id=named["unknown"],
        # llama.cpp's default counts only where there is a token to add.
        add_bos=file.value(f"{PREFIX}add_bos_token", bool, SPLITS[split].add_bos and named["bos"] is not None),
        add_eos=file.value(f"{PREFIX}add_eos_token", bool, False),
        chat_template=file.value(TEMPLATE, str, None),
        special_tokens={_NAMED[name]: tokens[i] for name, i in named.items() if i is not None},
    )


_NAMED = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
"""GGUF's names of special tokens, with those of transformers."""

_KNOWN = {TEMPLATE} | {
    PREFIX + name
    for name in (
        *("model", "pre", "tokens", "token_type", "scores", "merges"),
        *("add_bos_token", "add_eos_token", "add_space_prefix"),
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
