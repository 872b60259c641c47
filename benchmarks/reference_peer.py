"""transformers as `reference_parity.py` asks it: one probe at a time, float32.

Runs in an environment of its own and imports nothing of this project but the tokenizer loader of the test fixture.

usage: python reference_peer.py MODEL.gguf REQUEST.json OUTPUT.npz
The request is a list of [text or null, stored token ids]; the output has `vectors` and `same_ids`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch  # noqa: TID253 this script runs where the project does not
import transformers  # noqa: TID253

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures" / "reference"))
from make_reference import load_tokenizer


@torch.inference_mode()
def main() -> None:
    """Answers the request."""
    path = Path(sys.argv[1])
    tokenizer = load_tokenizer(path)
    model = transformers.AutoModel.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    vectors, same_ids = [], []
    for n, (text, stored) in enumerate(json.loads(Path(sys.argv[2]).read_text())):
        ids = stored if text is None else tokenizer(text)["input_ids"]
        same_ids.append(ids == stored)
        vectors.append(model(torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1].numpy())
        if n % 200 == 0:
            print(f"reference {n}", file=sys.stderr, flush=True)
    np.savez(sys.argv[3], vectors=np.stack(vectors), same_ids=np.array(same_ids))


if __name__ == "__main__":
    main()
