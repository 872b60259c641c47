import ctypes.util
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from resources import proof
from resources.engine.plugins import VARIABLE, PluginLibrary, configured_plugins, load_plugins
from resources.errors import ConfigurationError, EngineError, FabricError
from tests import zoo

DIGEST = "0a" * 32


def library(path: Path) -> PluginLibrary:
    return PluginLibrary(path, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture(scope="module")
def shared_library() -> Path:
    """Some shared library that is on every Linux; it has no plugins, and loading it does no harm."""
    name = ctypes.util.find_library("m")
    listing = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return Path(next(line.split(" => ")[1] for line in listing.splitlines() if line.split()[0] == name))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", ()),
        (f"/a/b.so={DIGEST}", (PluginLibrary(Path("/a/b.so"), DIGEST),)),
        (
            os.pathsep.join([f"/a/b.so={DIGEST.upper()}", f"/c=d.so={DIGEST}"]),
            (PluginLibrary(Path("/a/b.so"), DIGEST), PluginLibrary(Path("/c=d.so"), DIGEST)),
        ),
    ],
)
def test_a_setting_names_libraries_with_their_digests(monkeypatch, setting, expected):
    assert configured_plugins(setting) == expected
    monkeypatch.setenv(VARIABLE, setting)
    assert configured_plugins() == expected


@pytest.mark.parametrize("setting", ["/a/b.so", f"b.so={DIGEST}", "/a/b.so=0a0a", f"/a/b.so={'zz' * 32}", "="])
def test_a_setting_that_names_none_says_what_is_expected(setting):
    with pytest.raises(ConfigurationError, match="expected an absolute path, =, and the file's SHA-256"):
        configured_plugins(setting)


def test_a_library_with_its_digest_is_loaded(tmp_path, shared_library):
    load_plugins([library(shared_library)], tmp_path)
    assert str(shared_library.resolve()) in Path("/proc/self/maps").read_text()


def test_a_library_that_changed_is_not_loaded(tmp_path, shared_library):
    copy = tmp_path / "elsewhere" / "plugin.so"
    copy.parent.mkdir()
    copy.write_bytes(shared_library.read_bytes())
    with pytest.raises(EngineError, match=f"has SHA-256 [0-9a-f]{{64}}; expected {DIGEST}"):
        load_plugins([PluginLibrary(copy, DIGEST)], tmp_path / "engine")
    assert str(copy) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("link", [False, True], ids=["there", "through a link"])
def test_a_library_in_the_engines_own_directory_is_never_loaded(tmp_path, shared_library, link):
    engine = tmp_path / "engine"
    engine.mkdir()
    inside = engine / "plugin.so"
    inside.write_bytes(shared_library.read_bytes())
    named = inside
    if link:
        named = tmp_path / "link.so"
        named.symlink_to(inside)
    with pytest.raises(EngineError, match="lies in the engine's directory"):
        load_plugins([library(named)], engine)


@pytest.mark.parametrize(("content", "says"), [(None, "cannot be read"), (b"no library", "cannot be loaded")])
def test_a_library_that_is_none_is_named(tmp_path, content, says):
    path = tmp_path / "plugin.so"
    if content is not None:
        path.write_bytes(content)
    digest = hashlib.sha256(content or b"").hexdigest()
    with pytest.raises(EngineError, match=f"plugin.so {says}"):
        load_plugins([PluginLibrary(path, digest)], tmp_path / "engine")


def test_a_library_is_checked_before_the_plan_is_opened(tmp_path):
    zoo.write_foreign_engine(tmp_path / "engine", to_plan=lambda graph, plan, limits: plan.write_bytes(b"plan"))
    with pytest.raises(FabricError, match=r"missing\.so cannot be read"):
        proof.load(tmp_path / "engine", plugins=[PluginLibrary(tmp_path / "missing.so", DIGEST)])
