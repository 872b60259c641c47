"""Plugin libraries that an engine may need: named by the operator, with digests, never taken from an engine's folder.

Contract: a library is code that runs in this process, so it is loaded only from an absolute path outside the engine's
directory and with the SHA-256 that the operator configured. It stays loaded until the process ends.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resources.errors import ConfigurationError, EngineError

VARIABLE = "FABRIC_TRT_PLUGINS"

_TENSORRT_LLM_NAMESPACE = b"tensorrt_llm"
"""Where TensorRT-LLM's engines look for their plugins (`TRT_LLM_PLUGIN_NAMESPACE`)."""


@dataclass(frozen=True)
class PluginLibrary:
    """A shared library with TensorRT plugins."""

    path: Path
    sha256: str
    """64 hexadecimal digits."""


def configured_plugins(setting: str | None = None) -> tuple[PluginLibrary, ...]:
    """The libraries of `setting`, or of FABRIC_TRT_PLUGINS: `path=sha256`, several separated by `os.pathsep`."""
    libraries = []
    for entry in filter(None, (os.environ.get(VARIABLE, "") if setting is None else setting).split(os.pathsep)):
        path, _, sha256 = entry.rpartition("=")
        if not Path(path).is_absolute() or len(sha256) != 64 or not set(sha256.lower()) <= set("0123456789abcdef"):
            raise ConfigurationError(
                f"a plugin library is given as {entry!r}; expected an absolute path, =, and the file's SHA-256 "
                f"(sha256sum prints it), several separated by {os.pathsep!r}"
            )
        libraries.append(PluginLibrary(Path(path), sha256.lower()))
    return tuple(libraries)


def load_plugins(libraries: Sequence[PluginLibrary], engine_directory: Path) -> None:
    """Loads each library; one that changed, or that lies in the engine's own directory, is an `EngineError`."""
    for library in libraries:
        path = library.path.resolve()
        if path.is_relative_to(engine_directory.resolve()):
            raise EngineError(
                f"plugin library {path} lies in the engine's directory; expected one outside it: an engine does not "
                "bring its own code; configure a library that you trust"
            )
        try:
            seen = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise EngineError(f"plugin library {path} cannot be read: {error}; configure one that is there") from error
        if seen != library.sha256:
            raise EngineError(
                f"plugin library {path} has SHA-256 {seen}; expected {library.sha256}, as configured; restore the "
                "library, or configure the digest of one that you trust"
            )
        _load(path)


def _load(path: Path) -> None:
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise EngineError(f"plugin library {path} cannot be loaded: {error}; install what it needs") from error
    # Other libraries register their plugins by being loaded; TensorRT-LLM's waits to be asked.
    register = getattr(library, "initTrtLlmPlugins", None)
    if register is None:
        return
    register.argtypes, register.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_bool
    if not register(None, _TENSORRT_LLM_NAMESPACE):
        raise EngineError(f"plugin library {path} could not register its plugins; use the one that built the engine")
