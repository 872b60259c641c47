"""What goes wrong on a GPU is said, frees everything, and leaves a process that can load again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from resources import proof
from resources.engine.build import build_engine
from resources.engine.config import FOREIGN_PLAN
from resources.engine.cuda_memory import COUNTS
from resources.errors import EngineError
from resources.records import Limits
from tests import zoo
from tests.gpu.conftest import LIMITS

REFUSED = """
import sys
from pathlib import Path
from resources import proof
from resources.engine.cuda_memory import COUNTS, CudaMemory, memory_info
from resources.errors import EngineError
{before}
try:
    proof.load(Path(sys.argv[1]))
except EngineError as error:
    print(error)
else:
    sys.exit("it was not refused")
{after}
assert COUNTS.live == 0, COUNTS
if len(sys.argv) > 2:
    proof.load(Path(sys.argv[2])).close()
"""


def refused(*engines: Path, before: str = "", after: str = "") -> str:
    """What a process of its own says when it loads the first engine; it then loads the second, which is a right one.

    Of its own: TensorRT may end the process where a plan is damaged, and a test must say so rather than end too.
    """
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "-c", REFUSED.format(before=before, after=after), *map(str, engines)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, (run.returncode, run.stdout[-2000:], run.stderr[-2000:])
    return run.stdout


def foreign(directory: Path, content: bytes) -> Path:
    def to_plan(graph: Path, plan: Path, limits: Limits) -> Mapping[str, str]:
        plan.write_bytes(content)
        return {}

    zoo.write_foreign_engine(directory, to_plan=to_plan)
    return directory


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(1 << 20)], ids=["empty", "garbage", "zeros"])
def test_a_plan_of_garbage_is_refused_and_a_second_load_works(tmp_path, engines, content):
    said = refused(foreign(tmp_path, content), engines["float16"])
    assert "is no plan that TensorRT" in said
    assert "build the engine again, here" in said


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_truncated_plan_is_refused_and_a_second_load_works(tmp_path, engines, kept):
    plan = (engines["float16"] / FOREIGN_PLAN).read_bytes()
    said = refused(foreign(tmp_path, plan[: int(kept * len(plan))]), engines["float16"])
    assert "is no plan that TensorRT" in said


def test_one_of_our_plans_that_was_truncated_is_refused_before_tensorrt_sees_it(tmp_path, engines):
    shutil.copytree(engines["float16"], tmp_path / "engine")
    plan = tmp_path / "engine" / FOREIGN_PLAN
    plan.write_bytes(plan.read_bytes()[:-1])
    with pytest.raises(EngineError, match=r"changed-files.*rank0\.engine has digest"):
        proof.load(tmp_path / "engine")


def test_limits_beyond_all_memory_are_refused_and_a_second_load_works(tmp_path, engines):
    live = COUNTS.live
    shutil.copytree(engines["float16"], tmp_path / "engine")
    path = tmp_path / "engine" / "config.json"
    document = json.loads(path.read_text())
    document["build_config"]["max_num_tokens"] = 1 << 42
    path.write_text(json.dumps(document))
    with pytest.raises(EngineError, match=r"no memory for tensor .*free; build the engine with smaller limits"):
        proof.load(tmp_path / "engine")
    assert COUNTS.live == live
    proof.load(engines["float16"]).close()


FILL_THE_DEVICE = """
hog, size = CudaMemory(), memory_info().free
while size >= 1 << 20:
    try:
        hog.allocate_device(f"{size}", size)
    except EngineError:
        size //= 2
    else:
        size = min(size // 2, memory_info().free)
"""


def test_a_device_that_is_full_refuses_an_engine_and_takes_it_later(engines):
    said = refused(engines["float16"], engines["float16"], before=FILL_THE_DEVICE, after="hog.close()")
    assert "memory" in said or "free" in said


def test_a_plan_of_another_version_is_refused_in_words(tmp_path, engines):
    shutil.copytree(engines["float16"], tmp_path / "engine")
    path = tmp_path / "engine" / "config.json"
    document = json.loads(path.read_text())
    document["fabric"]["versions"]["tensorrt"] = "7.0"
    path.write_text(json.dumps(document))
    with pytest.raises(EngineError, match=r"was built by TensorRT 7\.0 for .*; build the engine again, here"):
        proof.load(tmp_path / "engine")


def test_a_timing_cache_that_does_not_fit_is_left_aside(checkpoint, tokenizer, engines_folder, engines, tmp_path):
    [cache] = engines_folder.glob(".timing-[0-9]*.cache")
    (tmp_path / cache.name).write_bytes(b"no timing cache")
    record = build_engine(checkpoint, tokenizer, tmp_path, backend="tensorrt", limits=LIMITS)
    proof.load(tmp_path / record.directory).close()
    assert (tmp_path / cache.name).read_bytes() != b"no timing cache"


def test_what_is_built_already_is_not_built_again(checkpoint, tokenizer, engines_folder, engines):
    again = build_engine(checkpoint, tokenizer, engines_folder, backend="tensorrt", precision="float16", limits=LIMITS)
    assert again.directory == engines["float16"].name
