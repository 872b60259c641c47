"""What runs beside what when the suite has several processes (`make test`): a group of tests stays in one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

SHARING = ("broker", "ui")
"""Folders whose tests share a broker or a browser: each is one group. Elsewhere a file is one, for what it makes once.
They take longest, most of it waiting, and so begin first."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: _group(item) not in SHARING)


def _group(item: pytest.Item) -> str:
    path = item.path.relative_to(HERE)
    return path.parts[0] if path.parts[0] in SHARING else path.as_posix()
