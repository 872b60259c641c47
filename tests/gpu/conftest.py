"""What the tests on a GPU share: plans built once. A machine without TensorRT or a GPU fails them, which is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from resources.checkpoint import Checkpoint, TokenizerPolicy, open_checkpoint
from resources.checkpoint.tokenizer import Tokenizer
from resources.engine.build import build_engine
from resources.engine.cuda_memory import describe_device
from resources.engine.tensorrt_build import build_plan
from resources.engine.tensorrt_versions import import_tensorrt
from resources.records import Limits
from tests.tiny import tiny_gguf

LIMITS = Limits(max_batch_size=32, max_num_tokens=2048, max_input_len=300)
"""Two profiles: up to 128 tokens, and up to 304."""

ToPlan = Callable[[Path, Path, Limits], Mapping[str, str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return open_checkpoint(str(tiny_gguf(tmp_path_factory.mktemp("checkpoint") / "tiny.gguf")))


@pytest.fixture(scope="session")
def tokenizer(checkpoint) -> Tokenizer:
    return checkpoint.tokenizer(TokenizerPolicy())


@pytest.fixture(scope="session")
def engines_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def engines(checkpoint, tokenizer, engines_folder) -> dict[str, Path]:
    """A tiny checkpoint's TensorRT engine in each precision, by precision."""
    return {
        precision: engines_folder
        / build_engine(
            checkpoint, tokenizer, engines_folder, backend="tensorrt", precision=precision, limits=LIMITS
        ).directory
        for precision in ("float16", "float32")
    }


@pytest.fixture(scope="session")
def reference(checkpoint, tokenizer, engines_folder) -> Path:
    """The same checkpoint's engine for ONNX Runtime, in float32."""
    return engines_folder / build_engine(checkpoint, tokenizer, engines_folder, limits=LIMITS).directory


@pytest.fixture(scope="session")
def to_plan(engines_folder) -> Callable[[str], ToPlan]:
    """Precision -> what `tests.zoo` makes plans with: quick builds, which share what they measure."""

    def of(precision: str) -> ToPlan:
        def build(graph: Path, plan: Path, limits: Limits) -> Mapping[str, str]:
            trt, device = import_tensorrt(), describe_device()
            build_plan(
                trt,
                graph,
                plan,
                precision=precision,
                limits=limits,
                num_hidden_layers=1,
                timing_cache=engines_folder / ".timing-zoo",
                optimization_level=0,
            )
            return {
                "tensorrt": trt.__version__,
                "gpu": device.name,
                "compute_capability": device.compute_capability,
            }

        return build

    return of
