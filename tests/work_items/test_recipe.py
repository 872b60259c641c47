"""Everything that decides a partition's work items moves their recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resources.records import Limits
from resources.work_items.recipe import recipe_digest

LIMITS = Limits(max_batch_size=4, max_num_tokens=8, max_input_len=16)
RECIPE = {"probes_digest": b"p" * 8, "tokenizer_id": "t", "limits": LIMITS, "vocab_size": 32}


@pytest.mark.parametrize(
    "change",
    [
        {"probes_digest": b"q" * 8},
        {"tokenizer_id": "u"},
        {"vocab_size": 33},
        *({"limits": replace(LIMITS, **{name: 5})} for name in ("max_batch_size", "max_num_tokens", "max_input_len")),
    ],
    ids=str,
)
def test_each_part_of_the_recipe_counts(change: dict[str, object]) -> None:
    assert recipe_digest(**RECIPE) == recipe_digest(**RECIPE)
    assert recipe_digest(**RECIPE | change) != recipe_digest(**RECIPE)
