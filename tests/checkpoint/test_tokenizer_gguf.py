"""A tokenizer that would cut text in a way that is not handled is refused by name."""

import numpy as np
import pytest

from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.errors import CheckpointError
from tests.tiny import tiny_gguf


@pytest.mark.parametrize(("metadata", "sentence"), [
    ({"tokenizer.ggml.model": "llama"}, "a 'llama' tokenizer; supported: 'gpt2'"),
    ({"tokenizer.ggml.pre": "deepseek-llm"}, "splits text as 'deepseek-llm'; supported: smollm"),
    ({"tokenizer.ggml.pre": "default"}, "splits text as 'default'"),
    ({"tokenizer.ggml.add_space_prefix": True}, r"'tokenizer\.ggml\.add_space_prefix' .* is set"),
    ({"tokenizer.ggml.precompiled_charsmap": [1, 2]}, r"'tokenizer\.ggml\.precompiled_charsmap'"),
    ({"tokenizer.ggml.remove_extra_whitespaces": True}, r"'tokenizer\.ggml\.remove_extra_whitespaces'"),
    ({"tokenizer.huggingface.json": "{}"}, r"'tokenizer\.huggingface\.json'"),
    ({"tokenizer.ggml.token_type": [1] * 272}, "273 tokens, 273 of them different, and 272 kinds"),
    ({"tokenizer.ggml.token_type": [6] * 273}, r"tokens of kind \[6\]"),
    ({"tokenizer.ggml.tokens": ["a"] * 273}, "273 tokens, 1 of them different"),
    ({"tokenizer.ggml.merges": ["t h", "no-space"]}, "the merge 'no-space'"),
    ({"tokenizer.ggml.merges": ["t h", "un known"]}, "merges do not fit its vocabulary"),
    ({"tokenizer.ggml.eos_token_id": np.uint32(273)}, r"'tokenizer\.ggml\.eos_token_id' .* is 273; .* below 273"),
    ({"tokenizer.ggml.tokens": ["t", "1", *(f"t{i}" for i in range(298))], "tokenizer.ggml.token_type": [1] * 300,
      "tokenizer.ggml.merges": ["t 1"]}, "300 tokens and an embedding of 273 rows"),
])  # fmt: skip
def test_what_changes_the_ids_is_refused_by_name(tmp_path, metadata, sentence):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", metadata=metadata)))
    with pytest.raises(CheckpointError, match=sentence):
        checkpoint.tokenizer(TokenizerPolicy())


@pytest.mark.parametrize("missing", ["model", "pre", "tokens", "token_type", "merges"])
def test_a_missing_part_of_the_tokenizer_is_named(tmp_path, missing):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", without=(f"tokenizer.ggml.{missing}",))))
    with pytest.raises(CheckpointError, match=rf"'tokenizer\.ggml\.{missing}'"):
        checkpoint.tokenizer(TokenizerPolicy())
