"""What a process says of itself once it holds a proven engine; every vector's row names it."""

from __future__ import annotations

import os
import platform
import socket
from datetime import UTC, datetime
from pathlib import Path

import xxhash

from resources.proof import ProvenEngine
from resources.records import Attestation


def attest(engine: ProvenEngine, *, worker: str | None = None, contract: str = "") -> Attestation:
    """The attestation of this process, now. `worker` is its name, by default `worker_name()`."""
    return Attestation(
        engine_id=engine.engine_id,
        model_key=engine.model_key,
        contract=contract,
        worker=worker or worker_name(),
        device=_device(engine.config.backend),
        validated_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        report_xxh3=xxhash.xxh3_128_hexdigest(engine.report.to_json().encode()),
    )


def worker_name(gpu: int | None = None) -> str:
    """The host, the GPU if one is named, and the process."""
    where = "" if gpu is None else f"-gpu{gpu}"
    return f"{socket.gethostname()}{where}-{os.getpid()}"


def _device(backend: str) -> str:
    if backend == "tensorrt":
        from resources.engine.cuda_memory import describe_device

        device = describe_device()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return f"{device.name} ({device.compute_capability})" + (f", CUDA_VISIBLE_DEVICES={visible}" if visible else "")
    return f"{_processor()}, {len(os.sched_getaffinity(0))} cores"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
