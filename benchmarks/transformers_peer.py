"""transformers as `cpu_speed.py` measures it: last-token states after the final norm, SDPA, right-padded batches.

Runs in an environment of its own and imports nothing of this project. Speaks JSON lines: the first request names the
model and the threads, each later one the sequences and a batch size; its answer is the seconds of one pass over them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch  # noqa: TID253 this script runs where the project does not
import transformers  # noqa: TID253


def main() -> None:
    """Answers requests until the input ends."""
    request = json.loads(sys.stdin.readline())
    torch.set_num_threads(request["threads"])
    path = Path(request["gguf"])
    model = transformers.AutoModel.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    answer({"torch": torch.__version__, "transformers": transformers.__version__})
    for line in sys.stdin:
        request = json.loads(line)
        with np.load(request["sequences"]) as saved:
            sequences = [saved[name] for name in saved.files]
        started = time.perf_counter()
        vectors = last_states(model, sequences, request["batch_size"])
        seconds = time.perf_counter() - started
        if "vectors" in request:
            np.save(request["vectors"], vectors)
        answer({"seconds": seconds})


@torch.inference_mode()
def last_states(model: transformers.PreTrainedModel, sequences: list[np.ndarray], batch_size: int) -> np.ndarray:
    """float32 [n, hidden] of sequences that come sorted by length."""
    states = []
    for first in range(0, len(sequences), batch_size):
        batch = sequences[first : first + batch_size]
        lengths = torch.tensor([len(s) for s in batch])
        ids = torch.zeros((len(batch), int(lengths.max())), dtype=torch.long)
        for row, sequence in zip(ids, batch, strict=True):
            row[: len(sequence)] = torch.from_numpy(sequence)
        # Without padding no mask is needed, and attention takes its causal fast path.
        mask = None if lengths.min() == lengths.max() else torch.arange(ids.shape[1]) < lengths[:, None]
        output = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        states.append(output[torch.arange(len(batch)), lengths - 1].numpy())
    return np.concatenate(states)


def answer(content: dict[str, object]) -> None:
    """One JSON line to the asker."""
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
