"""A checkpoint's chat template, applied in a process of its own that may take little time and memory.

Contract: messages in, the text that transformers' `apply_chat_template` gives out, or why there is none; the calling
process stays as it was whatever the template does. See `chat_worker` for the limits and how they hold.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.vocabulary import Vocabulary
from resources.errors import CheckpointError, ConfigurationError
from resources.records import Message

SECONDS = 1.0
"""Processor time of one rendering; a common one takes under a millisecond."""

CHARACTERS = 32 << 20
"""Of one rendered chat."""

BYTES = 1 << 29
"""Address space of the worker, of which Python and Jinja take some 60 MB."""

MOST_KILLS = 100
"""Renderings that may end with the worker killed before the template itself is refused: each took its whole time."""

REASONS = {
    "no-chat-template": "the probe is a chat, and the policy applies no chat template",
    "chat-template-error": "the chat template refused the messages",
    "chat-template-limit": "the chat template took more time, memory or text than it may",
    "special-token-in-message": "a message spells a special token, which the policy does not read as one",
    "second-bos": "the text begins with the BOS that the policy adds",
    "second-eos": "the text ends with the EOS that the policy adds",
    "ambiguous-spaces": "the tokenizer's file does not say which of two ways of spelling the text's spaces is meant",
}
"""Every reason for which a probe has no token ids."""


class Unencodable(NamedTuple):
    """Why a probe has no token ids: a reason of `REASONS`, and a sentence about this probe."""

    reason: str
    detail: str


class ChatTemplate:
    """The chat template of a vocabulary under a policy. One worker serves it; callers in other threads wait."""

    def __init__(self, vocabulary: Vocabulary, policy: TokenizerPolicy) -> None:
        """A template that cannot be compiled, or that takes too much for one short message, is a CheckpointError."""
        if vocabulary.chat_template is None:
            raise ConfigurationError(f"chat is {policy.chat!r}, and the checkpoint has no chat template; set none")
        self._setup = {
            "template": vocabulary.chat_template,
            "variables": {
                **vocabulary.special_tokens,
                **policy.variables,
                "add_generation_prompt": policy.chat == "generation_prompt",
            },
            "date": policy.chat_date,
            "seconds": SECONDS,
            "characters": CHARACTERS,
            "bytes": BYTES,
        }
        special = [t["content"] for t in vocabulary.content["added_tokens"] if t["special"] and t["content"]]
        self._forbidden = None if policy.parse_special else re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._kills = 0
        self._check(policy)

    def render(self, messages: Sequence[Message]) -> str | Unencodable:
        """The text of a chat, with the policy's generation prompt or without."""
        found = self._forbidden and self._forbidden.search("".join(text for message in messages for text in message))
        if found:
            return Unencodable(
                "special-token-in-message", f"a message spells {found[0]!r}; take it out, or set parse_special"
            )
        with self._lock:
            answer = self._ask(messages)
        if "text" in answer:
            return answer["text"]
        if self._kills >= MOST_KILLS:
            raise CheckpointError(
                f"the chat template was stopped {self._kills} times: {answer['error']}; take the probes out that do "
                "this, or extract without a chat template"
            )
        return Unencodable(answer["reason"], answer["error"])

    def _check(self, policy: TokenizerPolicy) -> None:
        with self._lock:
            compiled = self._start()
            answer = compiled if "error" in compiled else self._ask([Message("user", "hello")])
        if "error" in compiled or answer.get("reason") == "chat-template-limit":
            raise CheckpointError(
                f"the checkpoint's chat template cannot be used: {answer['error']}; mend it, or extract without one"
            )
        if compiled["asks_date"] and policy.chat_date is None:
            raise ConfigurationError(
                "the checkpoint's chat template writes today's date into the prompt, so that the same chat would have "
                "other tokens tomorrow; set chat_date to a day such as 2024-07-26"
            )

    def _ask(self, messages: Sequence[Message]) -> dict[str, Any]:
        if self._worker is None and "error" in (failed := self._start()):
            return failed
        return self._exchange({"messages": [message._asdict() for message in messages]})

    def _start(self) -> dict[str, Any]:
        """A new worker, and what it says of the template."""
        worker = subprocess.Popen(
            [sys.executable, "-s", "-P", str(Path(__file__).with_name("chat_worker.py"))],
            env=_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._worker = worker
        weakref.finalize(self, _stop, worker)
        return self._exchange(self._setup)

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        worker = self._worker
        assert worker is not None and worker.stdin is not None and worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(request).encode() + b"\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = b""
        if line.endswith(b"\n"):
            return json.loads(line)
        _stop(worker)
        self._worker, self._kills = None, self._kills + 1
        return {
            "reason": "chat-template-limit",
            "error": f"it took more than {SECONDS:g} s or ended its process (exit status {worker.returncode})",
        }


# Of Python's own variables one: the order of a set, which a template may write, must be the same in each process.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"PYTHONHASHSEED": "0"}


def _stop(worker: subprocess.Popen[bytes]) -> None:
    for pipe in (worker.stdin, worker.stdout):
        if pipe and not pipe.closed:
            try:
                pipe.close()
            except BrokenPipeError:
                continue
    worker.kill()
    worker.wait()
