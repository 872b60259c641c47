"""What docs/deployment.md tells an operator to write down, as the page has it: tests run that and no copy of it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def block(line: str) -> str:
    """The one fenced block of which some line starts with `line`."""
    [found] = [text for text in _FENCED.findall(PAGE.read_text()) if any(s.startswith(line) for s in text.splitlines())]
    return found
