"""Text -> token ids, under an explicit policy that is part of the tokenizer's identity.

Contract: the same vocabulary and policy give the same ids and the same `tokenizer_id` everywhere, also after `save` and
`load_tokenizer`. Ids are what transformers gives for the same checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from resources.checkpoint.vocabulary import Vocabulary
from resources.errors import CheckpointError, ConfigurationError
from resources.records import digest

TOKENIZER_FILE = "tokenizer.json"
POLICY_FILE = "tokenizer_policy.json"

OverLong = Literal["refuse", "truncate_left", "truncate_right"]


@dataclass(frozen=True, kw_only=True)
class TokenizerPolicy:
    """What is done to a text apart from cutting it into tokens. None leaves it to the checkpoint."""

    add_bos: bool | None = None
    """Put the begin-of-sequence token in front, also when the text already spells one."""
    add_eos: bool | None = None
    """Put the end-of-sequence token behind; the vector is then that token's."""
    parse_special: bool = True
    """Read a control token spelled in the text as that token, as transformers does; else as plain characters."""
    over_long: OverLong = "refuse"
    """What becomes of a text of more than `max_tokens`; "truncate_left" keeps the end of it."""
    max_tokens: int = 2048
    """The limit, with BOS and EOS counted."""

    def __post_init__(self) -> None:
        if self.over_long not in get_args(OverLong):
            raise ConfigurationError(f"over_long is {self.over_long!r}; expected one of {list(get_args(OverLong))}")
        if self.max_tokens < 1 + bool(self.add_bos) + bool(self.add_eos):
            raise ConfigurationError(f"max_tokens is {self.max_tokens}, which leaves no room for a token of the text")


class Tokenizer:
    """A byte-level BPE tokenizer with its resolved policy."""

    tokenizer_id: str
    """xxh3-128, hex, of the vocabulary, the merges, the pre-tokenizer and the resolved policy."""
    vocab_size: int
    special_ids: frozenset[int]
    """Control tokens, and BOS, EOS, padding and unknown."""
    policy: TokenizerPolicy
    """With nothing left open."""

    def __init__(self, vocabulary: Vocabulary, policy: TokenizerPolicy) -> None:
        self.policy = _resolved(policy, vocabulary)
        self.vocab_size = len(vocabulary.tokens)
        named = (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id, vocabulary.unknown_id)
        self.special_ids = frozenset(vocabulary.control_ids).union(i for i in named if i is not None)
        self.tokenizer_id = _identity(vocabulary, self.policy)
        self._vocabulary = vocabulary
        self._backend = _backend(vocabulary)
        self._backend.encode_special_tokens = not self.policy.parse_special
        self._prefix = [vocabulary.bos_id] if self.policy.add_bos else []
        self._suffix = [vocabulary.eos_id] if self.policy.add_eos else []

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, int32 [length], with BOS and EOS as the policy says and before any truncation.

        A text must be encodable as UTF-8 (no lone surrogates). An empty one gives only what the policy adds.
        """
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array([*self._prefix, *e.ids, *self._suffix], dtype=np.int32) for e in encodings]

    def fit(self, ids: np.ndarray) -> tuple[np.ndarray | None, bool]:
        """(ids within `max_tokens`, whether any were cut), or (None, False) when the policy refuses them.

        A BOS in front and an EOS behind that the policy adds are kept; what lies between is cut.
        """
        limit = self.policy.max_tokens
        if len(ids) <= limit:
            return ids, False
        if self.policy.over_long == "refuse":
            return None, False
        first = int(self._prefix == ids[:1].tolist())
        last = int(self._suffix == ids[-1:].tolist())
        body = ids[first : len(ids) - last]
        room = limit - first - last
        kept = body[len(body) - room :] if self.policy.over_long == "truncate_left" else body[:room]
        return np.concatenate([ids[:first], kept, ids[len(ids) - last :]]), True

    def decode(self, ids: Iterable[int]) -> str:
        """The text that `ids` spell, control tokens included."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def save(self, directory: Path) -> None:
        """Writes `tokenizer.json`, which Hugging Face's libraries read too, and the policy beside it."""
        vocabulary = self._vocabulary
        record = {
            "tokenizer_id": self.tokenizer_id,
            "pre_tokenizer": vocabulary.pre_tokenizer,
            "bos_id": vocabulary.bos_id,
            "eos_id": vocabulary.eos_id,
            "pad_id": vocabulary.pad_id,
            "unknown_id": vocabulary.unknown_id,
            "policy": asdict(self.policy),
        }
        (directory / TOKENIZER_FILE).write_text(self._backend.to_str(), encoding="utf-8")
        (directory / POLICY_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer that `save` wrote to `directory`; a CheckpointError when its files no longer give its id."""
    try:
        record = json.loads((directory / POLICY_FILE).read_text(encoding="utf-8"))
        content = json.loads((directory / TOKENIZER_FILE).read_text(encoding="utf-8"))
        policy = TokenizerPolicy(**record["policy"])
        tokenizer = Tokenizer(_saved_vocabulary(content, record, policy), policy)
        expected = record["tokenizer_id"]
    except OSError as error:
        raise CheckpointError(f"{directory} has no saved tokenizer: {error}; build the engine again") from error
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"the tokenizer in {directory} is damaged: {error!r}; build the engine again") from error
    if tokenizer.tokenizer_id != expected:
        raise CheckpointError(
            f"the tokenizer in {directory} has the id {tokenizer.tokenizer_id}; it was saved as {expected}; its files "
            "were changed since, so build the engine again"
        )
    return tokenizer


_PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    # llama.cpp's `smollm`: every digit by itself, then GPT-2's split. transformers 5.24 leaves the digits out when it
    # loads a GGUF file, and so cuts "a  1" otherwise.
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


def _backend(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    if vocabulary.pre_tokenizer not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"the tokenizer splits text as {vocabulary.pre_tokenizer!r}; supported: {', '.join(_PRE_TOKENIZERS)}"
        )
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
    except Exception as error:  # the library raises plain Exception for a merge of unknown tokens
        raise CheckpointError(f"the tokenizer's merges do not fit its vocabulary: {error}") from error
    backend.pre_tokenizer = _PRE_TOKENIZERS[vocabulary.pre_tokenizer]()
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([_whole(vocabulary.tokens[i], special=True) for i in vocabulary.control_ids])
    backend.add_tokens([_whole(vocabulary.tokens[i], special=False) for i in vocabulary.user_defined_ids])
    return backend


def _whole(token: str, *, special: bool) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(token, normalized=False, special=special)


def _resolved(policy: TokenizerPolicy, vocabulary: Vocabulary) -> TokenizerPolicy:
    policy = replace(
        policy,
        add_bos=vocabulary.add_bos if policy.add_bos is None else policy.add_bos,
        add_eos=vocabulary.add_eos if policy.add_eos is None else policy.add_eos,
    )
    for name, wanted, token_id in (
        ("add_bos", policy.add_bos, vocabulary.bos_id),
        ("add_eos", policy.add_eos, vocabulary.eos_id),
    ):
        if wanted and token_id is None:
            raise ConfigurationError(f"{name} is set, but the checkpoint names no such token; set it to false")
    return policy


def _identity(vocabulary: Vocabulary, policy: TokenizerPolicy) -> str:
    rest = {
        "pre_tokenizer": vocabulary.pre_tokenizer,
        "control": vocabulary.control_ids,
        "user_defined": vocabulary.user_defined_ids,
        "named": (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id, vocabulary.unknown_id),
        "policy": asdict(policy),
    }
    lists = (vocabulary.tokens, [" ".join(merge) for merge in vocabulary.merges])
    return digest(
        [json.dumps(rest, sort_keys=True).encode(), *(digest(s.encode() for s in strings) for strings in lists)]
    ).hex()


def _saved_vocabulary(content: dict[str, Any], record: dict[str, Any], policy: TokenizerPolicy) -> Vocabulary:
    ids: dict[str, int] = content["model"]["vocab"]
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("the ids of its vocabulary have gaps")
    added = content["added_tokens"]
    merges = (m.split(" ") if isinstance(m, str) else m for m in content["model"]["merges"])
    return Vocabulary(
        tokens=tuple(sorted(ids, key=ids.__getitem__)),
        merges=tuple((left, right) for left, right in merges),
        pre_tokenizer=record["pre_tokenizer"],
        control_ids=tuple(sorted(t["id"] for t in added if t["special"])),
        user_defined_ids=tuple(sorted(t["id"] for t in added if not t["special"])),
        bos_id=record["bos_id"],
        eos_id=record["eos_id"],
        pad_id=record["pad_id"],
        unknown_id=record["unknown_id"],
        add_bos=bool(policy.add_bos),
        add_eos=bool(policy.add_eos),
    )
