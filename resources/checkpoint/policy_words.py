"""A tokenizer's policy in words, for a report that a person reads."""

from __future__ import annotations

from resources.checkpoint.tokenizer import Tokenizer
from resources.records import digest


def policy_rows(tokenizer: Tokenizer) -> dict[str, str]:
    """What is done to a probe, one row for each part of the resolved policy: what it is about -> what is done."""
    policy, vocabulary = tokenizer.policy, tokenizer.vocabulary
    chat = policy.chat != "none"
    rows = {
        "BOS": _framing(tokenizer, vocabulary.bos_id, policy.add_bos, chat, "first"),
        "EOS": _framing(tokenizer, vocabulary.eos_id, policy.add_eos, chat, "last"),
        "special tokens spelled in a probe": _special(policy.parse_special, chat),
        f"more than {policy.max_tokens:,} tokens": {
            "refuse": "refused",
            "truncate_left": "cut at the start",
            "truncate_right": "cut at the end",
        }[policy.over_long],
        "chat template": {
            "none": "not applied",
            "turns": "applied to the turns",
            "generation_prompt": "applied to the turns, and the assistant's next one opened",
        }[policy.chat],
    }
    if chat:
        rows["chat template's xxh3-128"] = digest([str(vocabulary.chat_template).encode()]).hex()
        rows["today, to the chat template"] = policy.chat_date or "not asked for"
        rows["further variables of the chat template"] = policy.chat_variables
    return rows


def _framing(tokenizer: Tokenizer, token_id: int | None, added: bool | None, chat: bool, where: str) -> str:
    named = "the checkpoint names none" if token_id is None else f"{tokenizer.spelled(token_id)} (id {token_id})"
    if not added:
        return f"not added; {named}" + ("; the chat template writes what it wants" if chat else "")
    return f"{named}, put {where}" + (" unless the chat template did" if chat else "")


def _special(parsed: bool, chat: bool) -> str:
    if parsed:
        return "read as special tokens"
    return "a chat that spells one is refused" if chat else "read as plain characters"
