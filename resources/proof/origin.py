"""What an engine was built from and what it runs with, as the report states it."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress

from resources.checkpoint import Tokenizer
from resources.checkpoint.policy_words import policy_rows
from resources.engine.config import EngineConfig
from resources.proof.validation import Origin

DISTRIBUTION = "hidden-state-fabric"


def origin(config: EngineConfig, tokenizer: Tokenizer | None, *, opened: bool) -> Origin:
    """Digests and versions. `tokenizer` is None where a refusal came before it was opened; of an engine that was not
    opened, no device is asked for its name."""
    provenance = config.provenance
    return Origin(
        tokenizer_id=tokenizer.tokenizer_id if tokenizer else provenance.tokenizer_id if provenance else "",
        checkpoint_digest=provenance.checkpoint_digest if provenance else "",
        graph_version=provenance.graph_version if provenance else "",
        built_with=dict(provenance.versions) if provenance else {},
        runs_with=_versions(config.backend, opened=opened),
        tokenizer_policy=policy_rows(tokenizer) if tokenizer else {},
    )


def _versions(backend: str, *, opened: bool) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in (DISTRIBUTION, "numpy", *(["onnxruntime"] if backend == "onnxruntime" else [])):
        # A source tree that is not installed has no version of its own.
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    if backend == "tensorrt" and opened:
        from resources.engine.cuda_memory import describe_device
        from resources.engine.tensorrt_versions import import_tensorrt

        versions |= {"tensorrt": import_tensorrt().__version__, "gpu": describe_device().name}
    return versions
