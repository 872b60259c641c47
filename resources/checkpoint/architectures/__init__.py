"""The families of decoders that can be read: transformers' config.json and tensors -> `DecoderConfig` and sources.

Contract: what is not understood is refused by name (CheckpointError): a family, a key that may change the mathematics,
a value that is not supported, a tensor that is missing, of another shape, or that nothing reads. Adding a family is
described in docs/adding_an_architecture.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from resources.checkpoint.architectures import gemma, gpt2, gpt_neox, granite, llama, olmo2, phi3, qwen, smollm3
from resources.checkpoint.architectures.architecture import UNREAD, Architecture, Source
from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.config import DecoderConfig, tensor_specs
from resources.errors import CheckpointError

ARCHITECTURES: dict[str, Architecture] = {
    "llama": llama.LLAMA,
    "mistral": llama.MISTRAL,
    "qwen2": qwen.QWEN2,
    "qwen3": qwen.QWEN3,
    "gemma2": gemma.GEMMA2,
    "gemma3_text": gemma.GEMMA3,
    "gpt2": gpt2.GPT2,
    "phi3": phi3.PHI3,
    "gpt_neox": gpt_neox.GPT_NEOX,
    "olmo2": olmo2.OLMO2,
    "granite": granite.GRANITE,
    "smollm3": smollm3.SMOLLM3,
}
"""By transformers' `model_type`."""

_KINDS = ("ForCausalLM", "LMHeadModel", "Model", "TextModel", "ForSequenceClassification", "ForTokenClassification")
"""How the names of transformers' classes over a causal decoder end."""

__all__ = ["ARCHITECTURES", "Source", "read_config", "read_sources"]


def read_config(values: Mapping[str, Any], *, where: str) -> DecoderConfig:
    """The decoder that a transformers config.json, parsed as `values`, describes; `where` names it in messages."""
    reader = ConfigReader(values, where)
    family = reader.text("model_type")
    if family not in ARCHITECTURES:
        raise CheckpointError(f"{where} holds the architecture {family!r}; supported: {', '.join(ARCHITECTURES)}")
    _check_classes(values, ARCHITECTURES[family], reader)
    config = ARCHITECTURES[family].read_config(reader)
    reader.finish()
    _check(config, where)
    return config


def read_sources(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], *, where: str) -> Mapping[str, Source]:
    """Canonical name -> source, for each of `tensor_specs(config)`, under the names that `shapes` has.

    `shapes` are all the tensors that are stored, under transformers' names.
    """
    architecture = ARCHITECTURES[config.architecture]
    sources = architecture.sources(config)
    prefix = _prefix(architecture, sources, shapes)
    sources = {spec.name: _prefixed(sources[spec.name], prefix) for spec in tensor_specs(config)}
    for source in sources.values():
        if source.name not in shapes:
            raise CheckpointError(f"{where} has no tensor {source.name!r}; expected one of shape {list(source.shape)}")
        if shapes[source.name] != source.shape:
            raise CheckpointError(
                f"{source.name!r} of {where} has shape {list(shapes[source.name])}; its configuration says "
                f"{list(source.shape)}"
            )
    unread = [re.compile(pattern) for pattern in (*UNREAD, *architecture.unread)]
    used = {source.name for source in sources.values()}
    extra = sorted(n for n in shapes if n not in used and not any(pattern.fullmatch(n) for pattern in unread))
    if extra:
        raise CheckpointError(
            f"{where} has tensors that a {config.architecture} decoder does not use and that are not handled: "
            f"{', '.join(extra[:8])}; use a checkpoint without them"
        )
    return sources


def _prefix(architecture: Architecture, sources: Mapping[str, Source], shapes: Mapping[str, Any]) -> str:
    embedding = sources["embed_tokens.weight"].name
    return next((p for p in architecture.prefixes if p + embedding in shapes), architecture.prefixes[0])


def _prefixed(source: Source, prefix: str) -> Source:
    return replace(source, name=prefix + source.name)


def _check_classes(values: Mapping[str, Any], architecture: Architecture, reader: ConfigReader) -> None:
    """Refuses a checkpoint of a class of its own, which may compute something else under the family's name."""
    known = [architecture.classes + kind for kind in _KINDS]
    named = values.get("architectures") or []
    if type(named) is not list or not set(map(str, named)) <= set(known):
        raise reader.refusal("architectures", ", ".join(known))


def _check(config: DecoderConfig, where: str) -> None:
    attention = config.attention
    if attention.heads % attention.groups:
        raise CheckpointError(
            f"{where} has {attention.heads} heads over {attention.groups} key-value heads; expected a multiple"
        )
