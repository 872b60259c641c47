"""Starts one worker after another, none of which may be admitted; prints the exit code of each.

usage: many_workers.py ENGINE_DIR [ENGINE_DIR ...]
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from fabric_assets.commands.serving import serve

if __name__ == "__main__":
    # Not on the root logger, which each worker's start sets anew.
    logging.getLogger("fabric").addHandler(logging.StreamHandler(sys.stdout))
    logging.getLogger("fabric").setLevel(logging.INFO)
    logging.getLogger("fabric").propagate = False
    for directory in sys.argv[1:]:
        print("BEGIN", directory, flush=True)
        print("EXIT", serve(Path(directory), gpu=None, contract_file=None, threads=1), flush=True)
