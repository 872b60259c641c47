"""What decides which ids a text becomes, apart from the policy: one shape for every format of a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resources.records import digest


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A tokenizer without its policy."""

    content: Mapping[str, Any]
    """The tokenizer as a parsed `tokenizer.json` of the `tokenizers` library, with no post-processor, truncation or
    padding: what these would do is the policy's to say."""
    split: str | None = None
    """llama.cpp's name of how a text is cut before merging, where `content` was made from a GGUF file's lists."""
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    unknown_id: int | None
    add_bos: bool | None
    """Whether the checkpoint means a BOS in front of every text; None when it says both, and `doubt` quotes it."""
    add_eos: bool | None
    doubt: str = ""
    chat_template: str | None = None
    also_read: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `content` that another reading of the same file has otherwise, where the file does not say which is
    meant; a text to which the two give different ids has none."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """`bos_token` and the like -> how it is spelled; a chat template may use these names."""

    @property
    def ids(self) -> Mapping[str, int]:
        """Every token with its id, added ones included."""
        return self.learned_ids | {token["content"]: token["id"] for token in self.content["added_tokens"]}

    @property
    def learned_ids(self) -> dict[str, int]:
        """The tokens that text is cut into, with their ids; some may be added ones too."""
        return learned_ids(self.content)

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens with a meaning of their own, like a turn's start, and BOS, EOS, padding and unknown."""
        marked = (token["id"] for token in self.content["added_tokens"] if token["special"])
        return frozenset(marked).union(i for i in self._named if i is not None)

    def identity(self, policy: Mapping[str, Any]) -> str:
        """xxh3-128, hex, of all that decides the ids under a resolved policy's record."""
        facts: dict[str, Any] = {"named": self._named, "policy": policy}
        if policy.get("chat", "none") != "none":
            facts["chat"] = {"template": self.chat_template, "special_tokens": dict(self.special_tokens)}
        if self.also_read:
            facts["also_read"] = dict(self.also_read)
        return digest([*self._split_facts(facts), *self._lists()]).hex()

    @property
    def _named(self) -> tuple[int | None, ...]:
        return self.bos_id, self.eos_id, self.pad_id, self.unknown_id

    def _split_facts(self, facts: dict[str, Any]) -> list[bytes]:
        if self.split is not None:
            added = self.content["added_tokens"]
            facts |= {
                "pre_tokenizer": self.split,
                "control": sorted(token["id"] for token in added if token["special"]),
                "user_defined": sorted(token["id"] for token in added if not token["special"]),
            }
        return [json.dumps(facts, sort_keys=True).encode()]

    def _lists(self) -> list[bytes]:
        if self.split is None:
            return [digest([json.dumps(self.content, sort_keys=True).encode()])]
        model = self.content["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
        merges = (" ".join(merge) for merge in model["merges"])
        return [digest(text.encode() for text in texts) for texts in (tokens, merges)]


def learned_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of a parsed `tokenizer.json`'s model, added ones apart, with their ids."""
    found = content["model"]["vocab"]
    # A Unigram vocabulary is a list of [token, score].
    return dict(found) if isinstance(found, dict) else {token: i for i, (token, _) in enumerate(found)}
