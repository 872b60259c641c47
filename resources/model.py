"""The Dagster resource that names the model and says how its text becomes tokens.

One resource serves the `engine` and `tokenised_batches` assets, so that the two can't disagree about the checkpoint.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Literal

import dagster as dg
from pydantic import Field

from resources.checkpoint import DEFAULT_CHECKPOINT, Checkpoint, open_checkpoint
from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.tokenizer import Tokenizer
from resources.records import Limits


class Model(dg.ConfigurableResource):
    """The checkpoint, its tokenizer policy, and what one packed batch may hold."""

    # None, not what FABRIC_MODEL says: run configuration of any other field puts a field's own default back.
    checkpoint: str | None = Field(
        default=None,
        description="The packaged default's name, a folder of safetensors, a GGUF file or a hub id; unset: "
        "FABRIC_MODEL, else that default.",
    )
    over_long: Literal["refuse", "truncate_left", "truncate_right"] = Field(
        default="refuse",
        description="A probe of more than max_input_len tokens is refused, or cut at its start or its end.",
    )
    add_bos: bool | None = Field(default=None, description="Put BOS first; unset: as the checkpoint says.")
    add_eos: bool | None = Field(default=None, description="Put EOS last; unset: as the checkpoint says.")
    parse_special: bool = Field(
        default=True, description="Read special tokens written in a text as such (as transformers does)."
    )
    chat: Literal["none", "turns", "generation_prompt"] = Field(
        default="none",
        description="Apply the checkpoint's chat template, without or with the opening of the assistant's next turn. A "
        "text is then the one message of a user; BOS and EOS, where unset, are what the template writes.",
    )
    chat_date: str | None = Field(
        default=None, description="The day (YYYY-MM-DD) for a chat template that asks for today's date."
    )
    chat_variables: str = Field(
        default="{}", description="A JSON object of further variables for the chat template, like enable_thinking."
    )
    max_input_len: int = Field(
        default=1024, ge=2, description="Most tokens of one sequence; never more than the checkpoint has positions for."
    )
    max_num_tokens: int = Field(default=2048, ge=8, description="Most tokens of one packed batch.")
    max_batch_size: int = Field(default=64, ge=4, description="Most sequences of one packed batch.")

    @property
    def limits(self) -> Limits:
        """What one packed batch may hold; a sequence is never longer than the checkpoint has positions for."""
        longest = min(self.max_input_len, self.open_checkpoint().config.max_position_embeddings)
        return Limits(max_batch_size=self.max_batch_size, max_num_tokens=self.max_num_tokens, max_input_len=longest)

    def open_checkpoint(self) -> Checkpoint:
        """The checkpoint, opened once per process; a `CheckpointError` where it cannot be used."""
        return _checkpoint(self._spec)

    def open_tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer under the policy that the fields make."""
        policy = TokenizerPolicy(
            add_bos=self.add_bos,
            add_eos=self.add_eos,
            parse_special=self.parse_special,
            over_long=self.over_long,
            chat=self.chat,
            chat_date=self.chat_date,
            chat_variables=self.chat_variables,
            max_tokens=self.limits.max_input_len,
        )
        return _tokenizer(self._spec, policy)

    @property
    def _spec(self) -> str:
        return self.checkpoint or os.environ.get("FABRIC_MODEL", DEFAULT_CHECKPOINT)


@lru_cache(maxsize=2)
def _checkpoint(spec: str) -> Checkpoint:
    return open_checkpoint(spec)


@lru_cache(maxsize=2)
def _tokenizer(spec: str, policy: TokenizerPolicy) -> Tokenizer:
    return _checkpoint(spec).tokenizer(policy)
