"""The tokenizer of a folder as transformers saves it.

Contract: `tokenizer.json` is run as it is by the `tokenizers` library, but that truncation, padding and what it frames
a text with are taken out: BOS and EOS are the policy's to add. What the other files say beside it is read where it
changes ids (added tokens, named special tokens, BOS and EOS, the chat template), and refused where it is not handled.
No code of the folder runs but its chat template, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.safetensors_folder import read_json
from resources.checkpoint.tokenizer import TOKENIZER_FILE, Tokenizer
from resources.checkpoint.vocabulary import Vocabulary, learned_ids
from resources.errors import CheckpointError

CONFIG_FILE = "tokenizer_config.json"
SPECIAL_FILE = "special_tokens_map.json"
ADDED_FILE = "added_tokens.json"
TEMPLATE_FILE = "chat_template.jinja"

FILES = (TOKENIZER_FILE, CONFIG_FILE, SPECIAL_FILE, ADDED_FILE, TEMPLATE_FILE)
"""Every file that is read."""


def load_folder_tokenizer(path: Path, policy: TokenizerPolicy) -> Tokenizer:
    """The tokenizer of the folder `path` under `policy`."""
    return Tokenizer(read_folder_vocabulary(path), policy)


def read_folder_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of the folder `path`."""
    if not (path / TOKENIZER_FILE).exists():
        raise CheckpointError(
            f"{path} has no {TOKENIZER_FILE}; make one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    files = _Files(path, read_json(path / TOKENIZER_FILE), _optional(path / CONFIG_FILE))
    try:
        files.check()
        return _vocabulary(files)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the tokenizer in {path} is not as transformers writes it: {error!r}; save it again"
        ) from error


@dataclass(frozen=True)
class _Files:
    path: Path
    content: Mapping[str, Any]
    """`tokenizer.json`."""
    config: Mapping[str, Any]
    """`tokenizer_config.json`; empty without one."""

    def check(self) -> None:
        """Refuses what would change the ids and is not handled."""
        model, added = self.content.get("model"), self.content.get("added_tokens")
        if (
            not isinstance(model, dict)
            or not isinstance(model.get("vocab"), dict | list)
            or not isinstance(added, list)
        ):
            raise CheckpointError(
                f"{self.path / TOKENIZER_FILE} is no tokenizer of the tokenizers library; save it again"
            )
        if model.get("dropout"):
            raise CheckpointError(
                f"{self.path / TOKENIZER_FILE} sets dropout, with which a text has other ids each time; take it out"
            )
        for key in ("split_special_tokens", "fix_mistral_regex", "auto_map", "do_lower_case"):
            if self.config.get(key):
                raise CheckpointError(f"{self.path / CONFIG_FILE} sets {key!r}, which may change the ids; not handled")
        wanted, done = self.config.get("add_prefix_space"), _prefixes_space(self.content)
        if wanted is not None and wanted != done:
            raise CheckpointError(
                f"'add_prefix_space' of {self.path / CONFIG_FILE} is {wanted!r}, and {TOKENIZER_FILE} "
                f"{'puts a space first' if done else 'puts none'}; save the tokenizer again with transformers"
            )


def _vocabulary(files: _Files) -> Vocabulary:
    special = _named_tokens(files)
    added = _added_tokens(files, special)
    ids = learned_ids(files.content) | {token["content"]: token["id"] for token in added}
    framing = _framing(files, special, ids)
    bos, eos = special.get("bos_token", framing.before), special.get("eos_token", framing.after)
    doubts = {name: framing.doubt(files, name) for name in ("bos", "eos")}

    def token_id(token: str | None) -> int | None:
        return None if token is None else ids[token]

    return Vocabulary(
        content={**files.content, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None},
        bos_id=token_id(bos),
        eos_id=token_id(eos),
        pad_id=token_id(special.get("pad_token")),
        unknown_id=token_id(special.get("unk_token")),
        add_bos=None if doubts["bos"] else framing.before is not None,
        add_eos=None if doubts["eos"] else framing.after is not None,
        doubt="; ".join(filter(None, doubts.values())),
        chat_template=_chat_template(files),
        special_tokens=special,
    )


@dataclass(frozen=True)
class _Framing:
    """What the post-processor of `tokenizer.json` puts around a text."""

    before: str | None
    after: str | None

    def doubt(self, files: _Files, name: str) -> str:
        """What the two files say, where they differ: versions of transformers go by one or the other."""
        token = self.before if name == "bos" else self.after
        flag = files.config.get(f"add_{name}_token")
        if flag is None or flag == (token is not None):
            return ""
        return (
            f"'add_{name}_token' of {files.path / CONFIG_FILE} is {flag!r}, and {TOKENIZER_FILE} "
            f"{'adds none' if token is None else f'adds {token!r}'}"
        )


def _framing(files: _Files, special: Mapping[str, str], ids: Mapping[str, int]) -> _Framing:
    before: list[str] = []
    after: list[str] = []
    for step in _steps(files.content.get("post_processor"), "processors"):
        if step["type"] == "ByteLevel":
            continue
        if step["type"] != "TemplateProcessing":
            raise CheckpointError(
                f"{files.path / TOKENIZER_FILE} has a post-processor {step['type']!r}; supported: ByteLevel, "
                "TemplateProcessing"
            )
        first, last = _around(files, step, ids)
        before += first
        after += last
    for tokens, name in ((before, "bos_token"), (after, "eos_token")):
        if tokens not in ([], [special.get(name, *tokens[:1])]):
            raise CheckpointError(
                f"{files.path / TOKENIZER_FILE} puts {tokens} around a text, and its {name} is {special.get(name)!r}; "
                "only one BOS before and one EOS behind are handled"
            )
    return _Framing(next(iter(before), None), next(iter(after), None))


def _around(files: _Files, step: Mapping[str, Any], ids: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """The tokens that a TemplateProcessing writes before a text and after it."""
    path, pieces = files.path / TOKENIZER_FILE, step["single"]
    texts = [i for i, piece in enumerate(pieces) if "Sequence" in piece]
    if len(texts) != 1:
        raise CheckpointError(f"{path} has a post-processor that writes a text {len(texts)} times; expected once")
    tokens = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
    for token in tokens:
        if (written := step["special_tokens"][token]["ids"]) != [ids[token]]:
            raise CheckpointError(
                f"{path} has a post-processor that writes {token!r} as {written}, and the token has the id "
                f"{ids[token]}; save the tokenizer again with transformers"
            )
    return tokens[: texts[0]], tokens[texts[0] :]


def _named_tokens(files: _Files) -> dict[str, str]:
    """`bos_token` and the like -> how it is spelled."""
    named: dict[str, str] = {}
    for source in (_optional(files.path / SPECIAL_FILE), files.config):
        for key, value in source.items():
            spelled = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(spelled, str):
                named[key] = spelled
    return named


def _extra_tokens(files: _Files) -> Iterator[str]:
    for source in (_optional(files.path / SPECIAL_FILE), files.config):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            found = source.get(key) or ()
            for value in found.values() if isinstance(found, dict) else found:
                yield value["content"] if isinstance(value, dict) else value


def _added_tokens(files: _Files, named: Mapping[str, str]) -> list[dict[str, Any]]:
    """The tokens that are matched whole, in the order of their ids, as transformers joins them from all files."""
    added = {token["content"]: dict(token) for token in files.content["added_tokens"]}
    declared = files.config.get("added_tokens_decoder")
    for token_id, token in (declared or {}).items():
        flags = {name: token.get(name, default) for name, default in _FLAGS.items()}
        added[token["content"]] = {"id": int(token_id), "content": token["content"], **flags}
    special = dict.fromkeys([*named.values(), *_extra_tokens(files)])
    if declared is None:
        for content, token_id in _optional(files.path / ADDED_FILE).items():
            flags = _FLAGS | {"normalized": content not in special, "special": content in special}
            added.setdefault(content, {"id": token_id, "content": content, **flags})
    ids = learned_ids(files.content)
    for content in special:
        if content not in added:
            free = 1 + max([*ids.values(), *(token["id"] for token in added.values())], default=-1)
            flags = _FLAGS | {"normalized": False, "special": True}
            added[content] = {"id": ids.get(content, free), "content": content, **flags}
        added[content]["special"] = True
    return sorted(added.values(), key=lambda token: token["id"])


_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}


def _chat_template(files: _Files) -> str | None:
    if _is_there(files.path / TEMPLATE_FILE):
        try:
            return (files.path / TEMPLATE_FILE).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{files.path / TEMPLATE_FILE} cannot be read: {error}; make it readable UTF-8"
            ) from error
    found = files.config.get("chat_template")
    if isinstance(found, list):
        found = {template["name"]: template["template"] for template in found}.get("default")
    return found


def _prefixes_space(content: Mapping[str, Any]) -> bool:
    """Whether a space is put before a text."""
    for step in _steps(content.get("normalizer"), "normalizers"):
        if step["type"] == "Prepend":
            return True
    for step in _steps(content.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] in ("ByteLevel", "Metaspace"):
            return step.get("prepend_scheme", "always" if step.get("add_prefix_space") else "never") != "never"
    return False


def _steps(part: Mapping[str, Any] | None, several: str) -> list[Mapping[str, Any]]:
    """The steps of a part of `tokenizer.json`, which may be one, or a sequence under the key `several`."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for inner in part[several] for step in _steps(inner, several)]
    return [part]


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if _is_there(path) else {}


def _is_there(path: Path) -> bool:
    """Also a link to nothing, which then can't be read: a hub cache that lost a file means it to be there."""
    return path.exists() or path.is_symlink()
