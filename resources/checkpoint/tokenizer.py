"""Probes -> token ids, under an explicit policy that is part of the tokenizer's identity.

Contract: the same vocabulary and policy give the same ids and the same `tokenizer_id` everywhere, also after `save` and
`load_tokenizer`. Ids are what transformers gives for the same checkpoint (docs/tokens.md names the one exception). BOS
and EOS are added here, as the resolved policy says, and never by the library. Ids are the truth: nothing is cut as
text, or decoded and tokenised again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from resources.checkpoint.byte_level import byte_level_content
from resources.checkpoint.chat_template import ChatTemplate, Unencodable
from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.vocabulary import Vocabulary
from resources.errors import CheckpointError, ConfigurationError, FabricError
from resources.records import Message

TOKENIZER_FILE = "tokenizer.json"
POLICY_FILE = "tokenizer_policy.json"


class Tokenizer:
    """A tokenizer with its resolved policy."""

    tokenizer_id: str
    """xxh3-128, hex, of the vocabulary, how text is cut, and the resolved policy."""
    vocab_size: int
    """One more than the greatest id."""
    learned_size: int
    """One more than the greatest id that a text without added tokens can have."""
    special_ids: frozenset[int]
    """Special tokens, and BOS, EOS, padding and unknown."""
    policy: TokenizerPolicy
    """With nothing left open."""
    vocabulary: Vocabulary

    def __init__(self, vocabulary: Vocabulary, policy: TokenizerPolicy) -> None:
        self.vocabulary = vocabulary
        self.policy = _resolved(policy, vocabulary)
        self.special_ids = vocabulary.special_ids
        self.tokenizer_id = vocabulary.identity(self.policy.record())
        self._backend = _backend(vocabulary)
        self._other = _backend(replace(vocabulary, content=other)) if (other := self._other_content()) else None
        for backend in filter(None, (self._backend, self._other)):
            backend.encode_special_tokens = not self.policy.parse_special and self.policy.chat == "none"
        self.vocab_size = 1 + max(vocabulary.ids.values(), default=-1)
        self.learned_size = 1 + max(vocabulary.learned_ids.values(), default=-1)
        self._prefix = [vocabulary.bos_id] if self.policy.add_bos else []
        self._suffix = [vocabulary.eos_id] if self.policy.add_eos else []
        self._template = None if self.policy.chat == "none" else ChatTemplate(vocabulary, self.policy)
        # A template writes the BOS of its own; it is no less worth keeping.
        self._first = [vocabulary.bos_id] if self._template else self._prefix

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode_probes` of texts that must all have ids; raises a FabricError that says which has none."""
        encoded: list[np.ndarray] = []
        for text, ids in zip(texts, self.encode_probes(texts), strict=True):
            if isinstance(ids, Unencodable):
                raise FabricError(f"{text[:40]!r} gives no token ids: {ids.detail} ({ids.reason})")
            encoded.append(ids)
        return encoded

    def encode_probes(self, probes: Sequence[str | Sequence[Message]]) -> list[np.ndarray | Unencodable]:
        """Ids of each text or chat, int32 [length], before any truncation, or why it has none.

        With a chat template, a text is the one message of a user. A text must be encodable as UTF-8 (no lone
        surrogates); an empty one gives only what the policy adds.
        """
        spelled = [self._spelled(probe) for probe in probes]
        texts = [text for text in spelled if isinstance(text, str)]
        encodings = iter(self._ids(texts))
        return [self._framed(next(encodings)) if isinstance(s, str) else s for s in spelled]

    def fit(self, ids: np.ndarray) -> tuple[np.ndarray | None, bool]:
        """(ids within `max_tokens`, whether any were cut), or (None, False) when the policy refuses them.

        A BOS in front and an EOS behind that the policy adds are kept; what lies between is cut.
        """
        limit = self.policy.max_tokens
        if len(ids) <= limit:
            return ids, False
        if self.policy.over_long == "refuse":
            return None, False
        first = int(self._first == ids[:1].tolist())
        last = int(self._suffix == ids[-1:].tolist())
        body = ids[first : len(ids) - last]
        room = limit - first - last
        kept = body[len(body) - room :] if self.policy.over_long == "truncate_left" else body[:room]
        return np.concatenate([ids[:first], kept, ids[len(ids) - last :]]), True

    def decode(self, ids: Iterable[int]) -> str:
        """The text that `ids` spell, special tokens included."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def spelled(self, token_id: int) -> str:
        """One token as a person reads it, its spaces kept; bytes that are no whole character are shown as U+FFFD."""
        token = self._backend.id_to_token(int(token_id))
        if token is None:
            return ""
        # A SentencePiece-like decoder takes the space before a first word away.
        return token.replace("\u2581", " ") if token.startswith("\u2581") else self.decode([token_id])

    def save(self, directory: Path) -> None:
        """Writes `tokenizer.json`, which Hugging Face's libraries read too, and the policy beside it."""
        vocabulary = self.vocabulary
        record: dict[str, Any] = {"tokenizer_id": self.tokenizer_id}
        if vocabulary.split is not None:
            record["pre_tokenizer"] = vocabulary.split
        record |= {name: getattr(vocabulary, name) for name in _SAVED_IDS}
        if vocabulary.also_read:
            record["also_read"] = dict(vocabulary.also_read)
        if self._template:
            record["chat_template"] = vocabulary.chat_template
            record["special_tokens"] = dict(vocabulary.special_tokens)
        record["policy"] = self.policy.record()
        content = json.dumps(vocabulary.content, ensure_ascii=False)
        (directory / TOKENIZER_FILE).write_text(content, encoding="utf-8")
        (directory / POLICY_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def _spelled(self, probe: str | Sequence[Message]) -> str | Unencodable:
        if self._template:
            return self._template.render([Message("user", probe)] if isinstance(probe, str) else probe)
        if isinstance(probe, str):
            return probe
        return Unencodable("no-chat-template", "the probe is a chat, and the policy applies no chat template; set chat")

    def _other_content(self) -> dict[str, Any]:
        also_read = self.vocabulary.also_read
        return {**self.vocabulary.content, **also_read} if also_read else {}

    def _ids(self, texts: list[str]) -> list[list[int] | None]:
        """Of each text; None where two readings of the tokenizer differ."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        if self._other is None:
            return [encoding.ids for encoding in encodings]
        others = self._other.encode_batch_fast(texts, add_special_tokens=False)
        return [one.ids if one.ids == other.ids else None for one, other in zip(encodings, others, strict=True)]

    def _framed(self, ids: list[int] | None) -> np.ndarray | Unencodable:
        """With the BOS and EOS of the policy, and never two of one."""
        if ids is None:
            return Unencodable(
                "ambiguous-spaces",
                "the tokenizer's file does not say where it puts a space first, and this text has other ids either "
                "way; use the model's safetensors folder",
            )
        prefix, suffix = self._prefix, self._suffix
        begins, ends = bool(prefix) and ids[:1] == prefix, bool(suffix) and ids[-1:] == suffix
        if self._template:
            prefix, suffix = prefix[begins:], suffix[ends:]
        elif begins or ends:
            return Unencodable(
                "second-bos" if begins else "second-eos",
                f"the text {'begins with the BOS' if begins else 'ends with the EOS'} that the policy adds; set "
                f"add_{'bos' if begins else 'eos'} to false, or parse_special if the text only looks like it",
            )
        return np.array([*prefix, *ids, *suffix], dtype=np.int32)


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
    except (ValueError, LookupError, TypeError, AttributeError, FabricError) as error:
        raise CheckpointError(f"the tokenizer in {directory} is damaged: {error!r}; build the engine again") from error
    if tokenizer.tokenizer_id != expected:
        raise CheckpointError(
            f"the tokenizer in {directory} has the id {tokenizer.tokenizer_id}; it was saved as {expected}; its files "
            "were changed since, so build the engine again"
        )
    return tokenizer


_SAVED_IDS = ("bos_id", "eos_id", "pad_id", "unknown_id")


def _backend(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(vocabulary.content))
    except Exception as error:  # the library raises plain Exception for whatever it does not take
        raise CheckpointError(f"the tokenizer cannot be built: {error}; save it again with transformers") from error
    moved = [token for token, i in vocabulary.ids.items() if backend.token_to_id(token) != i]
    if moved:
        raise CheckpointError(
            f"the tokenizer gives {moved[0]!r} the id {backend.token_to_id(moved[0])}; its files say "
            f"{vocabulary.ids[moved[0]]}; save it again with transformers"
        )
    return backend


def _resolved(policy: TokenizerPolicy, vocabulary: Vocabulary) -> TokenizerPolicy:
    def framed(field: str, wanted: bool | None, meant: bool | None, token_id: int | None) -> bool:
        if wanted is None:
            # The template of a chat writes what frames it.
            wanted = False if policy.chat != "none" else meant
        if wanted is None:
            raise ConfigurationError(f"{vocabulary.doubt}; set {field} to true or false")
        if wanted and token_id is None:
            raise ConfigurationError(f"{field} is set, but the checkpoint names no such token; set it to false")
        return wanted

    return replace(
        policy,
        add_bos=framed("add_bos", policy.add_bos, vocabulary.add_bos, vocabulary.bos_id),
        add_eos=framed("add_eos", policy.add_eos, vocabulary.add_eos, vocabulary.eos_id),
    )


def _saved_vocabulary(content: dict[str, Any], record: dict[str, Any], policy: TokenizerPolicy) -> Vocabulary:
    split = record.get("pre_tokenizer")
    return Vocabulary(
        content=content if split is None else _rebuilt(content, split),
        split=split,
        add_bos=policy.add_bos,
        add_eos=policy.add_eos,
        chat_template=record.get("chat_template"),
        also_read=record.get("also_read", {}),
        special_tokens=record.get("special_tokens", {}),
        **{name: record[name] for name in _SAVED_IDS},
    )


def _rebuilt(content: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Made of its lists again: the identity covers these and the name of the split, not how the file spells it."""
    ids: dict[str, int] = content["model"]["vocab"]
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("the ids of its vocabulary have gaps")
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in content["model"]["merges"])
    return byte_level_content(
        sorted(ids, key=ids.__getitem__),
        [(left, right) for left, right in merges],
        split,
        control=(token["id"] for token in content["added_tokens"] if token["special"]),
        user_defined=(token["id"] for token in content["added_tokens"] if not token["special"]),
    )
