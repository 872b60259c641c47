"""Who allocates on the GPU: nobody after warm-up, over 1,000 batches of changing shapes; and what 20 loads leave there.

Counted are this project's own calls (device and pinned memory), TensorRT's through an allocator given to its runtime,
and, whoever allocates by whichever call, the device's free memory.

usage: python -m benchmarks.gpu.allocations --engines FOLDER
On an H200 it takes more than four minutes, most of it the loads.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import LIMITS, report, smollm2
from resources.engine.cuda_memory import COUNTS, memory_info
from resources.engine.tensorrt_versions import import_tensorrt
from resources.packing import most_sequences
from resources.proof import ProvenEngine, load

BATCHES, WARM_UP, LOADS = 1000, 40, 20
SLACK = 8 << 20
"""Bytes that the driver may keep for itself between two loads."""


def main() -> None:
    """Writes the report; exit 1 where a batch allocated or a load left something."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=Path, required=True)
    directory = smollm2(parser.parse_args().engines)
    counted = count_tensorrts()
    with load(directory) as engine:
        during = run_batches(engine, counted)
    print(during, flush=True)
    load(directory).close()
    free = [memory_info().free]
    for _ in range(LOADS):
        load(directory).close()
        free.append(memory_info().free)
        print(f"{len(free) - 1} loads: {free[-1] >> 20} MiB free", flush=True)
    left = {
        "loads": LOADS,
        "live_own": COUNTS.live,
        "live_of_tensorrt": counted.live,
        "bytes_free_less_than_after_the_first_load": free[0] - free[-1],
        "free_after_each_mib": [f >> 20 for f in free],
    }
    report("gpu_allocations", {"batches": during, "after_close": left})
    clean = not any(during[k] for k in ("calls_own", "calls_of_tensorrt", "bytes_of_device_memory_taken"))
    nothing_left = not COUNTS.live and not counted.live and free[0] - free[-1] <= SLACK
    sys.exit(0 if clean and nothing_left else 1)


def run_batches(engine: ProvenEngine, counted: Any) -> dict[str, Any]:
    """What was allocated while batches of every shape ran."""
    random = np.random.default_rng(0)
    for _ in range(WARM_UP):
        engine.extract(a_batch(random, engine.config.vocab_size))
    own, tensorrts, free = COUNTS.allocating_calls, counted.calls, memory_info().free
    shapes = set()
    for _ in range(BATCHES):
        batch = a_batch(random, engine.config.vocab_size)
        engine.extract(batch)
        shapes.add((len(batch), sum(map(len, batch)), max(map(len, batch))))
    return {
        "batches": BATCHES,
        "different_shapes": len(shapes),
        "calls_own": COUNTS.allocating_calls - own,
        "calls_of_tensorrt": counted.calls - tensorrts,
        "calls_of_tensorrt_before": tensorrts,
        "bytes_of_device_memory_taken": max(0, free - memory_info().free),
    }


def a_batch(random: np.random.Generator, vocab_size: int) -> list[np.ndarray]:
    """Sequences of about one length, any length and any number that fits."""
    longest = int(np.exp(random.uniform(0, np.log(LIMITS.max_input_len))))
    most = min(most_sequences(longest, LIMITS), LIMITS.max_num_tokens // longest)
    lengths = random.integers(-(-longest // 2), longest + 1, random.integers(1, most + 1))
    return [random.integers(100, vocab_size, n, dtype=np.int32) for n in lengths]


def count_tensorrts() -> Any:
    """Gives every runtime made from now on an allocator that counts; its `calls` and `live` are over all of them."""
    trt = import_tensorrt()
    from cuda.bindings import runtime as cuda

    class Counting(trt.IGpuAllocator):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IGpuAllocator.__init__(self)
            self.calls = self.live = 0

        def allocate(self, size: int, alignment: int, flags: int) -> int:
            code, address = cuda.cudaMalloc(size)
            self.calls += 1
            self.live += int(code) == 0
            return int(address) if int(code) == 0 else 0

        def reallocate(self, address: int, alignment: int, new_size: int) -> int:
            return 0

        def deallocate(self, memory: int) -> bool:
            if memory:
                self.live -= 1
            return not memory or int(cuda.cudaFree(memory)[0]) == 0

        def free(self, memory: int) -> None:
            self.deallocate(memory)

        def allocate_async(self, size: int, alignment: int, flags: int, stream: int) -> int:
            return self.allocate(size, alignment, flags)

        def deallocate_async(self, memory: int, stream: int) -> bool:
            cuda.cudaStreamSynchronize(stream)
            return self.deallocate(memory)

    counting, make = Counting(), trt.Runtime

    def runtime(log: Any) -> Any:
        made = make(log)
        made.gpu_allocator = counting
        return made

    trt.Runtime = runtime
    return counting


if __name__ == "__main__":
    main()
