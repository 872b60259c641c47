"""The home: named, or that of the source tree, or here."""

from __future__ import annotations

from pathlib import Path

import pytest

from io_managers import layout

TREE = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("given", "module", "home"),
    [
        ("/elsewhere", None, Path("/elsewhere")),
        ("below", None, Path("here/below")),
        ("", None, TREE / ".fabric"),
        ("", "installed/io_managers/layout.py", Path("here/.fabric")),
    ],
    ids=["named", "named relative to here", "source tree", "installed package"],
)
def test_home(tmp_path: Path, monkeypatch, given: str, module: str | None, home: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("FABRIC_HOME", given)
    if module is not None:
        monkeypatch.setattr(layout, "__file__", str(tmp_path / module))

    assert layout.home() == tmp_path / home
    assert layout.lake_path() == layout.home() / "lake"
    assert {layout.engines_path(), layout.probes_path(), layout.scratch_path()} == {
        layout.home() / name for name in ("engines", "probes", "scratch")
    }
