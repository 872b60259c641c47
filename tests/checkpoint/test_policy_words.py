"""The policy as the validation report shows it."""

from pathlib import Path

import pytest

from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.policy_words import policy_rows
from resources.checkpoint.tokenizer_folder import load_folder_tokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tokenizers"


@pytest.mark.parametrize(("name", "policy", "rows"), [
    ("mistral", {"max_tokens": 1024}, {
        "BOS": "<s> (id 1), put first",
        "EOS": "not added; </s> (id 2)",
        "special tokens spelled in a probe": "read as special tokens",
        "more than 1,024 tokens": "refused",
        "chat template": "not applied",
    }),
    ("qwen", {"chat": "generation_prompt", "parse_special": False, "add_eos": True, "over_long": "truncate_left"}, {
        "BOS": "not added; the checkpoint names none; the chat template writes what it wants",
        "EOS": "<|im_end|> (id 420), put last unless the chat template did",
        "special tokens spelled in a probe": "a chat that spells one is refused",
        "more than 2,048 tokens": "cut at the start",
        "chat template": "applied to the turns, and the assistant's next one opened",
        "today, to the chat template": "not asked for",
        "further variables of the chat template": "{}",
    }),
])  # fmt: skip
def test_every_part_of_the_resolved_policy_has_a_row(name, policy, rows):
    found = policy_rows(load_folder_tokenizer(FIXTURES / name, TokenizerPolicy(**policy)))
    assert len(found.pop("chat template's xxh3-128", "0" * 32)) == 32
    assert found == rows
