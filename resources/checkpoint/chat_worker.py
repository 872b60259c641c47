"""Renders chat templates in a process of its own: a template is a program that came with a checkpoint.

Contract: run by file, with nothing imported but the standard library and Jinja. Reads JSON objects, one a line: first
{"template", "variables", "date", "seconds", "characters", "bytes"}, then {"messages"} again and again; answers each
with {"text"} or {"error", "reason"}. A template reaches no attribute or function that Jinja's sandbox keeps from it.
The process has `bytes` of address space, can write no file, and is killed by the kernel (SIGPROF) when one answer takes
`seconds` of processor time; all of this holds inside the interpreter's C code too, which a counter of steps cannot see.

The environment is that of transformers 5.24 (utils/chat_template_utils.py), but that `strftime_now` tells the given
date, and that Jinja's `random` and `lipsum` are left out, since a text must give the same tokens again.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment


def main() -> None:
    """Answers until standard input ends."""
    requests = (json.loads(line) for line in sys.stdin.buffer)
    setup = next(requests)
    resource.setrlimit(resource.RLIMIT_AS, (setup["bytes"], setup["bytes"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    answer(lambda: {"text": "", **compiled(setup)}, setup["seconds"])
    for request in requests:
        answer(lambda request=request: {"text": rendered(setup, request["messages"])}, setup["seconds"])


def answer(work: Any, seconds: float) -> None:
    """Writes what `work` gives, or why it gives nothing."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        found = work()
    except MemoryError:
        found = {"reason": "chat-template-limit", "error": "the chat template needs more memory than it may have"}
    except OverflowError as error:
        found = {"reason": "chat-template-limit", "error": f"the chat template goes past a limit: {error}"}
    except RecursionError:
        found = {"reason": "chat-template-limit", "error": "the chat template calls itself without end"}
    except Exception as error:  # whatever a template does wrong is its own
        found = {
            "reason": "chat-template-error",
            "error": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:500]}",
        }
    line = json.dumps(found).encode() + b"\n"
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-f]+>")
"""What Python says of an object that has no better name."""

_template: jinja2.Template


def compiled(setup: dict[str, Any]) -> dict[str, Any]:
    """Compiles the template; tells whether it asks for the date."""
    global _template
    environment = _environment(setup["date"])
    names = jinja2.meta.find_undeclared_variables(environment.parse(setup["template"]))
    _template = environment.from_string(setup["template"])
    return {"asks_date": "strftime_now" in names}


def rendered(setup: dict[str, Any], messages: list[dict[str, Any]]) -> str:
    """The text of one chat."""
    pieces, length = [], 0
    for piece in _template.generate({"tools": None, "documents": None, **setup["variables"], "messages": messages}):
        length += len(piece)
        if length > setup["characters"]:
            raise OverflowError(f"its text has more than {setup['characters']:,} characters")
        pieces.append(piece)
    text = "".join(pieces)
    said = "".join(value for message in messages for value in message.values())
    if strange := set(ADDRESS.findall(text)) - set(ADDRESS.findall(said)):
        raise ValueError(f"it writes where an object lies ({min(strange)}), which is elsewhere each time")
    # A template can spell half a surrogate pair, which has no bytes.
    text.encode()
    return text


class Generation(jinja2.ext.Extension):
    """The tag pair `generation`, which marks what the assistant said: its content, unchanged."""

    tags = {"generation"}  # noqa: RUF012 (Jinja wants a set, on the class)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Any) -> str:
        return caller()


class Dictionary:
    """What a template gets for `dict`: without the class itself, whose attributes lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class Namespace(jinja2.utils.Namespace):
    """Jinja's, but for names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as Jinja has it, so that `self` may be a name
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _require_plain(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_plain(name)
        super().__setitem__(name, value)


def _require_plain(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no name like {name!r}")


def _environment(day: str | None) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    del environment.filters["random"], environment.globals["lipsum"]
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise, "dict": Dictionary(), "namespace": Namespace}
    if day is not None:
        environment.globals["strftime_now"] = datetime.fromisoformat(day).strftime
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    main()
