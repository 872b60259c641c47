"""A strict reader of transformers' config.json: every key is taken with a type, and what nobody took is refused.

Contract: a key may change the mathematics. One that no architecture takes, that is not known to be harmless (HARMLESS)
and that has not its neutral value (NEUTRAL) is a CheckpointError that names it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from resources.errors import CheckpointError


class _Missing(Enum):
    MISSING = "missing"


REQUIRED: Final = _Missing.MISSING
"""In place of a default: the key must be there."""

MOST_LAYERS = 10_000
"""More are a damaged file, and would fill the memory before anything else is looked at."""

HARMLESS = frozenset({
    *("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "tokenizer_class"),
    *("_attn_implementation", "_attn_implementation_autoset", "_flash_attn_2_enabled", "attn_implementation"),
    *("_commit_hash", "cache_implementation", "use_cache", "return_dict", "return_dict_in_generate", "torchscript"),
    *("output_attentions", "output_hidden_states", "output_scores", "chunk_size_feed_forward", "use_bfloat16"),
    *("tf_legacy_loss", "gradient_checkpointing", "unsloth_version", "unsloth_fixed", "model_type"),
    # Which tokens have a meaning of their own, and how text is generated.
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids"),
    *("max_length", "min_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "typical_p"),
    *("num_beams", "num_beam_groups", "num_return_sequences", "early_stopping", "diversity_penalty"),
    *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("exponential_decay_length_penalty", "remove_invalid_values", "prefix", "task_specific_params"),
    # Training, initialisation, and heads that are not read here.
    *("initializer_range", "initializer_factor", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop"),
    *("attn_pdrop", "classifier_dropout", "pretraining_tp", "tie_word_embeddings", "tie_encoder_decoder"),
    *("transformers.js_config", "max_sequence_length", "neftune_noise_alpha", "_num_labels"),
    *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "is_decoder", "final_logit_softcapping"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
})  # fmt: skip
"""Keys that never change the states before the language-model head. Dropout does nothing outside training."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_causal": (True,),
    "is_llama_config": (True,),
    "rope_interleaved": (False,),
    "use_bidirectional_attention": (False, None),
    # In Qwen 2.5's configurations.
    "use_mrope": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "compression_config": (None,),
}
"""Keys of any architecture that change the mathematics unless they have one of these values."""


class ConfigReader:
    """The keys of one JSON object. `where` names it in messages.

    A null counts as missing where the method does not say otherwise; numbers are finite and positive.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.values = values
        self._neutral, self._harmless = NEUTRAL, HARMLESS
        self._taken: set[str] = set()
        self._nested: list[ConfigReader] = []

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def integer(self, key: str, default: int | _Missing = REQUIRED, *, least: int = 1) -> int:
        found = self._take(key, default)
        if type(found) is not int or found < least:
            raise self.refusal(key, "a positive integer" if least == 1 else f"an integer of at least {least}")
        return found

    def number(self, key: str, default: float | _Missing = REQUIRED) -> float:
        found = self._take(key, default)
        if not _is_positive(found):
            raise self.refusal(key, "a positive number")
        return float(found)

    def optional_integer(self, key: str, default: int | None) -> int | None:
        """`default` when the key is missing, None when it is null."""
        found = self._take(key, default, null_is_missing=False)
        return None if found is None else self.integer(key, found)

    def optional_number(self, key: str, default: float | None) -> float | None:
        """`default` when the key is missing, None when it is null."""
        found = self._take(key, default, null_is_missing=False)
        return None if found is None else self.number(key, found)

    def flag(self, key: str, default: bool | _Missing = REQUIRED) -> bool:
        found = self._take(key, default)
        if type(found) is not bool:
            raise self.refusal(key, "true or false")
        return found

    def text(self, key: str, default: str | _Missing = REQUIRED) -> str:
        found = self._take(key, default)
        if type(found) is not str:
            raise self.refusal(key, "a string")
        return found

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of `length` positive numbers."""
        found = self._take(key, REQUIRED)
        if type(found) is not list or len(found) != length or not all(map(_is_positive, found)):
            raise self.refusal(key, f"a list of {length} positive numbers")
        return tuple(map(float, found))

    def choices(self, key: str, length: int, among: Sequence[Any]) -> tuple[Any, ...] | None:
        """A list of at least `length` values, each one of `among`, cut to `length`; None when it is missing."""
        found = self._take(key, None)
        if found is None:
            return None
        if type(found) is not list or len(found) < length or not all(_is_one_of(value, among) for value in found):
            raise self.refusal(key, f"a list of {length} of {list(among)}")
        return tuple(found[:length])

    def only(self, key: str, *allowed: Any) -> None:
        """Takes a key that must be missing or have one of these values: another would need what is not there."""
        found = self._take(key, ..., null_is_missing=False)
        if found is not ... and not _is_one_of(found, allowed):
            raise self.refusal(key, " or ".join(json.dumps(value) for value in allowed))

    def nested(self, key: str) -> ConfigReader:
        """The object `key`, read as strictly; empty when it is missing or null."""
        found = self._take(key, {})
        if type(found) is not dict:
            raise self.refusal(key, "an object")
        nested = ConfigReader(found, f"{key!r} of {self.where}")
        nested._neutral, nested._harmless = {}, frozenset()
        self._nested.append(nested)
        return nested

    def ignore(self, *keys: str) -> None:
        """Takes keys that this architecture is known not to use."""
        self._taken.update(keys)

    def finish(self) -> None:
        """Refuses what nobody took, here and in what is nested."""
        for key, allowed in self._neutral.items():
            if key not in self._taken:
                self.only(key, *allowed)
        left = [key for key in self.values if key not in self._taken and key not in self._harmless]
        if left:
            raise CheckpointError(
                f"{self.where} sets {', '.join(map(repr, left))}, which may change the mathematics and is not "
                "handled; use another model, or add what it does (docs/adding_an_architecture.md)"
            )
        for nested in self._nested:
            nested.finish()

    def refusal(self, key: str, expected: str) -> CheckpointError:
        """What to raise for the value of `key`."""
        if key not in self.values:
            return CheckpointError(f"{self.where} has no {key!r}; expected {expected}")
        found = self.values[key]
        return CheckpointError(f"{key!r} of {self.where} is {json.dumps(found)[:80]}; supported: {expected}")

    def _take(self, key: str, default: Any, *, null_is_missing: bool = True) -> Any:
        self._taken.add(key)
        found = self.values.get(key, default)
        return default if found is None and null_is_missing else found


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= sys.float_info.max


def _is_one_of(value: Any, allowed: Sequence[Any]) -> bool:
    """Whether `value` is among `allowed`, where true is not 1."""
    return any(type(value) is type(a) and value == a for a in allowed)
