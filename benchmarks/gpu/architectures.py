"""Every architecture on the GPU: the tests' tiny checkpoints as TensorRT plans, proved, against transformers' vectors.

usage: python -m benchmarks.gpu.architectures [--processes N]
Exit 1 where an engine is not built, is refused, or gives a vector further from transformers' than its precision allows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from benchmarks.gpu.common import cosines, report
from resources.checkpoint import Checkpoint, TokenizerPolicy, open_checkpoint
from resources.engine.build import build_engine
from resources.errors import EngineError, EngineRefused
from resources.proof import load
from resources.records import Limits
from tests.checkpoint.architectures.references import CHECKPOINTS, NAMES, Reference

LEAST_COSINE = {"float32": 0.999999, "float16": 0.9995}
LIMITS = Limits(max_batch_size=8, max_num_tokens=512, max_input_len=128)


def main() -> None:
    """Writes the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=6)
    arguments = parser.parse_args()
    cases = [(name, precision) for name in NAMES for precision in LEAST_COSINE]
    rows: dict[str, dict[str, Any]] = {precision: {} for precision in LEAST_COSINE}
    # A process apart: TensorRT may end the one that it is in, and no process forks once CUDA is open.
    with ProcessPoolExecutor(arguments.processes, multiprocessing.get_context("spawn")) as pool:
        for (name, precision), row in zip(cases, pool.map(measured, *zip(*cases, strict=True)), strict=True):
            rows[precision][name] = row
            print(name, precision, row, flush=True)
    wrong = sum(not row["good"] for of in rows.values() for row in of.values())
    report(
        "gpu_architectures", {"least_cosine_allowed": LEAST_COSINE, "checkpoints": len(NAMES), "wrong": wrong} | rows
    )
    sys.exit(1 if wrong else 0)


def measured(name: str, precision: str) -> dict[str, Any]:
    """How near its vectors are, alone and in company, or what was said instead."""
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = with_tokenizer(name, Path(folder) / "checkpoint")
            longest = min(LIMITS.max_input_len, checkpoint.config.max_position_embeddings)
            limits = Limits(LIMITS.max_batch_size, LIMITS.max_num_tokens, longest)
            reference = Reference.read(name).up_to(longest)
            record = build_engine(
                checkpoint,
                checkpoint.tokenizer(TokenizerPolicy()),
                Path(folder),
                backend="tensorrt",
                precision=precision,
                limits=limits,
            )
            with load(Path(folder) / record.directory) as engine:
                alone = np.concatenate([engine.extract([ids]) for ids in reference.sequences])
                together = engine.extract(reference.sequences)
    except (EngineError, EngineRefused) as error:
        return {"good": False, "said": str(error)[:300]}
    found = np.concatenate([cosines(vectors, reference.vectors) for vectors in (alone, together)])
    return {
        # A cosine that is no number is not good either.
        "good": bool((found >= LEAST_COSINE[precision]).all()),
        "least_cosine": round(float(found.min()), 8),
        "seconds": round(time.perf_counter() - started, 1),
    }


def with_tokenizer(name: str, folder: Path) -> Checkpoint:
    """The checkpoint `name`, with one token a character beside it: it has no tokenizer, and an engine needs one."""
    shutil.copytree(CHECKPOINTS / name, folder)
    size = open_checkpoint(str(folder)).config.vocab_size
    characters = {"<unk>": 0} | {chr(ord(" ") + i): i + 1 for i in range(size - 1)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(characters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    return open_checkpoint(str(folder))


if __name__ == "__main__":
    main()
