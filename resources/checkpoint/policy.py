"""What is done to a probe apart from cutting its text into tokens: explicit, and part of the tokenizer's identity."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Literal, get_args

from resources.errors import ConfigurationError

OverLong = Literal["refuse", "truncate_left", "truncate_right"]

Chat = Literal["none", "turns", "generation_prompt"]


_NO_VARIABLES = {"messages", "add_generation_prompt", "strftime_now"}


@dataclass(frozen=True, kw_only=True)
class TokenizerPolicy:
    """What becomes of a probe on its way to token ids. None leaves a field to the checkpoint."""

    add_bos: bool | None = None
    """Put the begin-of-sequence token in front. Of a chat: unless its template did; left open, the template decides."""
    add_eos: bool | None = None
    """Put the end-of-sequence token behind, so that the vector is that token's; of a chat as with `add_bos`."""
    parse_special: bool = True
    """Read a special token spelled in a text as that token, as transformers does; else as plain characters. In a chat,
    whose template spells special tokens itself, a message that spells one is then refused."""
    over_long: OverLong = "refuse"
    """What becomes of a probe of more than `max_tokens`; "truncate_left" keeps the end of it."""
    max_tokens: int = 2048
    """The limit, with BOS and EOS counted."""
    chat: Chat = "none"
    """Whether the checkpoint's chat template is applied, and whether it then opens the assistant's next turn."""
    chat_date: str | None = None
    """The day (YYYY-MM-DD) that a template which asks for today's date is given."""
    chat_variables: str = "{}"
    """A JSON object of further variables for the template, such as {"enable_thinking": false}."""

    def __post_init__(self) -> None:
        for name, value, known in (("over_long", self.over_long, OverLong), ("chat", self.chat, Chat)):
            if value not in get_args(known):
                raise ConfigurationError(f"{name} is {value!r}; expected one of {list(get_args(known))}")
        # A template may write a BOS of its own.
        first = self.add_bos or self.chat != "none"
        if self.max_tokens < 1 + bool(first) + bool(self.add_eos):
            raise ConfigurationError(
                f"max_tokens is {self.max_tokens}, which leaves no room for a token of the text; raise it"
            )
        variables = self.variables
        if taken := sorted(variables.keys() & _NO_VARIABLES):
            raise ConfigurationError(
                f"chat_variables sets {taken[0]!r}, which the chat and the policy's own fields say; take it out"
            )
        if self.chat == "none" and (self.chat_date is not None or variables):
            raise ConfigurationError("chat_date or chat_variables is set, and chat is 'none'; set chat too")
        if self.chat != "none" and self.over_long == "truncate_right":
            raise ConfigurationError(
                "over_long is 'truncate_right' with a chat template, which would cut off the end of the last turn, "
                "where the vector is read; use 'truncate_left' or 'refuse'"
            )
        if self.chat_date is not None:
            _require_date(self.chat_date)

    @property
    def variables(self) -> dict[str, Any]:
        """`chat_variables`, parsed."""
        try:
            variables = json.loads(self.chat_variables)
        except ValueError as error:
            raise ConfigurationError(
                f"chat_variables is {self.chat_variables!r}, which is no JSON ({error}); expected a JSON object"
            ) from error
        if not isinstance(variables, dict):
            raise ConfigurationError(f"chat_variables is {self.chat_variables!r}; expected a JSON object")
        return variables

    def record(self) -> dict[str, Any]:
        """The fields as plain values; those of the chat are there only when there is one.

        Stored ids are digests of this: policies without a chat had no such fields before there were chats.
        """
        fields = asdict(self)
        if self.chat == "none":
            return {name: value for name, value in fields.items() if not name.startswith("chat")}
        return fields | {"chat_variables": json.dumps(self.variables, sort_keys=True)}


def _require_date(text: str) -> None:
    try:
        date.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(f"chat_date is {text!r}; expected a day such as 2024-07-26") from error
