"""A server of S3's protocol on loopback, moto's.

It has a process of its own, since delta-rs holds the interpreter's lock while it waits for an answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.broker.rabbitmq import free_ports

START_S = 60.0


@contextmanager
def object_store(bucket: str) -> Iterator[dict[str, str]]:
    """The environment in which `s3://bucket` is a bucket of that server."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _make_bucket(f"{endpoint}/{bucket}", server)
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "NO_PROXY": os.environ.get("NO_PROXY", "") + ",127.0.0.1",
        }
    finally:
        server.kill()
        server.wait()


def _make_bucket(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urlopen(Request(url, method="PUT"), timeout=10).close()
            return
        except (URLError, ConnectionError):
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
