"""A byte-level BPE vocabulary: what decides which ids a text becomes, apart from the policy.

Contract: reads GGUF's `tokenizer.*` metadata; a key, token kind or pre-tokenizer that is not handled is an error, never
skipped, since a wrong split gives other ids without a word.
"""

from __future__ import annotations

from dataclasses import dataclass

from resources.checkpoint.gguf_file import GgufFile
from resources.errors import CheckpointError

PREFIX = "tokenizer.ggml."

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""llama.cpp's token kinds that a byte-level vocabulary may hold."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A byte-level BPE vocabulary. `tokens[i]` is the token of id i, spelled in the byte alphabet of GPT-2."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    pre_tokenizer: str
    """llama.cpp's name of how a text is cut before merging."""
    control_ids: tuple[int, ...]
    """Tokens with a meaning of their own, like a turn's start; ascending."""
    user_defined_ids: tuple[int, ...]
    """Plain tokens that are matched whole; ascending."""
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unknown_id: int | None
    add_bos: bool
    add_eos: bool


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
    return Vocabulary(
        tokens=tokens,
        merges=tuple(_merge(line, file) for line in file.value(f"{PREFIX}merges", list)),
        pre_tokenizer=file.value(f"{PREFIX}pre", str),
        control_ids=tuple(i for i, kind in enumerate(kinds) if kind == CONTROL),
        user_defined_ids=tuple(i for i, kind in enumerate(kinds) if kind == USER_DEFINED),
        bos_id=_token_id(file, "bos", len(tokens)),
        eos_id=_token_id(file, "eos", len(tokens)),
        pad_id=_token_id(file, "padding", len(tokens)),
        unknown_id=_token_id(file, "unknown", len(tokens)),
        add_bos=file.value(f"{PREFIX}add_bos_token", bool, False),
        add_eos=file.value(f"{PREFIX}add_eos_token", bool, False),
    )


_KNOWN = {"tokenizer.chat_template"} | {
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
