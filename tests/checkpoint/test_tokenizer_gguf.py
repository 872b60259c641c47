"""A tokenizer that would cut text in a way that is not handled is refused by name."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from resources.checkpoint import TokenizerPolicy, load_tokenizer, open_checkpoint
from resources.checkpoint.byte_level import SPLITS
from resources.checkpoint.chat_template import Unencodable
from resources.checkpoint.gguf_file import GgufFile
from resources.checkpoint.tokenizer_folder import load_folder_tokenizer, read_folder_vocabulary
from resources.checkpoint.tokenizer_gguf import load_gguf_tokenizer
from resources.errors import CheckpointError
from resources.records import Message
from tests.fixtures.reference.texts import random_texts
from tests.tiny import tiny_gguf


@pytest.mark.parametrize(("metadata", "sentence"), [
    ({"tokenizer.ggml.model": "bert"}, "a 'bert' tokenizer; supported: 'gpt2'"),
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


FIXTURES = Path(__file__).parents[1] / "fixtures" / "tokenizers"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))["tokenizers"]


def converted(name, path, **changes):
    """A GGUF file with the byte-level tokenizer of a fixture's folder, as llama.cpp's converter writes it."""
    vocabulary = read_folder_vocabulary(FIXTURES / name)
    kinds = {token["id"]: 3 if token["special"] else 4 for token in vocabulary.content["added_tokens"]}
    tokens = sorted(vocabulary.ids, key=vocabulary.ids.__getitem__)
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(i, 1) for i in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in vocabulary.content["model"]["merges"]],
        **changes,
    }
    named = {"bos": vocabulary.bos_id, "eos": vocabulary.eos_id, "padding": vocabulary.pad_id}
    metadata |= {f"tokenizer.ggml.{key}_token_id": np.uint32(i) for key, i in named.items() if i is not None}
    without = (
        "tokenizer.ggml.unknown_token_id",
        *(f"tokenizer.ggml.{k}_token_id" for k, i in named.items() if i is None),
    )
    if vocabulary.chat_template:
        metadata["tokenizer.chat_template"] = vocabulary.chat_template
    return GgufFile(tiny_gguf(path, metadata=metadata, without=without))


@pytest.mark.parametrize(("name", "pre"), [("llama3", "llama-bpe"), ("qwen", "qwen2"), ("gpt2", "gpt-2")])
def test_a_converted_tokenizer_gives_the_ids_of_its_folder(tmp_path, name, pre):
    file = converted(name, tmp_path / "m.gguf", **{"tokenizer.ggml.pre": pre})
    tokenizer = load_gguf_tokenizer(file, TokenizerPolicy())
    expected = EXPECTED[name]
    assert [ids.tolist() for ids in tokenizer.encode([t["text"] for t in expected["texts"]])] == [
        t["ids"] for t in expected["texts"]
    ]
    random_ids = json.dumps([ids.tolist() for ids in tokenizer.encode(random_texts())], separators=(",", ":"))
    assert hashlib.sha256(random_ids.encode()).hexdigest() == expected["random_ids_sha256"]
    for chat in expected["chats"]:
        chatting = load_gguf_tokenizer(file, TokenizerPolicy(chat=chat["chat"]))
        [ids] = chatting.encode_probes([tuple(Message(**message) for message in chat["messages"])])
        assert ids.tolist() == chat["ids"]


def test_named_templates_beside_the_default_one_are_passed_over(tmp_path):
    named = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "{{ tools }}"}
    file = converted("qwen", tmp_path / "m.gguf", **{"tokenizer.ggml.pre": "qwen2"}, **named)
    tokenizer = load_gguf_tokenizer(file, TokenizerPolicy(chat="turns"))
    assert tokenizer.decode(tokenizer.encode(["hi"])[0]).endswith("<|im_start|>user\nhi<|im_end|>\n")


def converted_pieces(name, path, *, architecture="llama", merges=None, **changes):
    """A GGUF file with the SentencePiece-like tokenizer of a fixture's folder, as llama.cpp's converter writes it."""
    vocabulary = read_folder_vocabulary(FIXTURES / name)
    content = vocabulary.content
    kinds = {token["id"]: 3 if token["special"] else 4 for token in content["added_tokens"]}
    tokens = sorted(vocabulary.ids, key=vocabulary.ids.__getitem__)
    kinds |= {i: 6 for i, token in enumerate(tokens) if token.startswith("<0x")} | {vocabulary.unknown_id: 2}
    rank = {left + right: -float(n) for n, (left, right) in enumerate(content["model"]["merges"])}
    metadata = {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [t.replace("\u2581", " ") if kinds.get(i) == 4 else t for i, t in enumerate(tokens)],
        "tokenizer.ggml.token_type": [kinds.get(i, 1) for i in range(len(tokens))],
        "tokenizer.ggml.scores": [-1000.0 if i in kinds else rank.get(t, -2000.0) for i, t in enumerate(tokens)],
        "tokenizer.ggml.bos_token_id": np.uint32(vocabulary.bos_id),
        "tokenizer.ggml.eos_token_id": np.uint32(vocabulary.eos_id),
        "tokenizer.ggml.unknown_token_id": np.uint32(vocabulary.unknown_id),
        "tokenizer.chat_template": vocabulary.chat_template,
        **changes,
    }
    left_out = ["tokenizer.ggml.padding_token_id"]
    if merges is None:
        left_out.append("tokenizer.ggml.merges")
    else:
        metadata["tokenizer.ggml.merges"] = merges
    return GgufFile(tiny_gguf(path, metadata=metadata, without=tuple(left_out)))


def test_converted_pieces_without_a_space_first_give_the_ids_of_their_folder(tmp_path):
    flags = {"tokenizer.ggml.add_space_prefix": False}
    file = converted_pieces("gemma", tmp_path / "m.gguf", architecture="gemma3", **flags)
    tokenizer = load_gguf_tokenizer(file, TokenizerPolicy())
    expected = EXPECTED["gemma"]
    for text in expected["texts"]:
        assert tokenizer.encode([text["text"]])[0].tolist() == text["ids"]
    random_ids = json.dumps([ids.tolist() for ids in tokenizer.encode(random_texts())], separators=(",", ":"))
    assert hashlib.sha256(random_ids.encode()).hexdigest() == expected["random_ids_sha256"]
    for chat in (c for c in expected["chats"] if isinstance(c["ids"], list)):
        chatting = load_gguf_tokenizer(file, TokenizerPolicy(chat=chat["chat"]))
        [ids] = chatting.encode_probes([tuple(Message(**message) for message in chat["messages"])])
        assert ids.tolist() == chat["ids"]


def test_converted_pieces_with_a_space_first_give_the_ids_of_their_folder_where_both_readings_do(tmp_path):
    tokenizer = load_gguf_tokenizer(converted_pieces("mistral", tmp_path / "m.gguf"), TokenizerPolicy())
    tokenizer.save(tmp_path)
    folder = load_folder_tokenizer(FIXTURES / "mistral", TokenizerPolicy())
    texts = [*(t["text"] for t in EXPECTED["mistral"]["texts"]), *random_texts(1000)]
    refused = []
    for same in (tokenizer, load_tokenizer(tmp_path)):
        found = same.encode_probes(texts)
        refused = [text for text, ids in zip(texts, found, strict=True) if isinstance(ids, Unencodable)]
        assert {ids.reason for ids in found if isinstance(ids, Unencodable)} == {"ambiguous-spaces"}
        for text, ids in zip(texts, found, strict=True):
            if text not in refused:
                assert ids.tolist() == folder.encode([text])[0].tolist()
    # A text is refused for a space or U+2581 before it, or for text behind a special token.
    assert 0 < len(refused) < len(texts) / 3
    assert all(text[:1] in " \u2581" or "<s>" in text or "</s>" in text or "<unk>" in text for text in refused)


def test_merges_that_a_file_gives_go_before_those_that_its_scores_imply(tmp_path):
    merges = [" ".join(m) for m in read_folder_vocabulary(FIXTURES / "mistral").content["model"]["merges"]]
    implied = load_gguf_tokenizer(converted_pieces("mistral", tmp_path / "m.gguf"), TokenizerPolicy())
    for given, same in ((merges, True), (merges[:5], False)):
        path = tmp_path / f"{same}.gguf"
        tokenizer = load_gguf_tokenizer(converted_pieces("mistral", path, merges=given), TokenizerPolicy())
        texts = ["the weather is fine today", "lazy dog"]
        found = [[ids.tolist() for ids in t.encode(texts)] for t in (tokenizer, implied)]
        assert (found[0] == found[1]) is same


def test_bytes_are_fallen_back_to_and_come_back(tmp_path):
    tokenizer = load_gguf_tokenizer(converted_pieces("mistral", tmp_path / "m.gguf"), TokenizerPolicy(add_bos=False))
    [ids] = tokenizer.encode(["\U0001f1eb"])
    assert [tokenizer.vocabulary.ids[f"<0x{byte:02X}>"] for byte in "\U0001f1eb".encode()] == ids[-4:].tolist()
    assert tokenizer.decode(ids) == "\U0001f1eb"


@pytest.mark.parametrize(("architecture", "changes", "sentence"), [
    ("phi3", {}, "a 'llama' tokenizer, of a Phi-3"),
    ("llama", {"tokenizer.ggml.remove_extra_whitespaces": True}, "remove_extra_whitespaces' of .* is set"),
    ("llama", {"tokenizer.ggml.scores": [1.0]}, "1 scores and 1 unknown tokens"),
    ("llama", {"tokenizer.ggml.scores": [0.0] * 586}, "two tokens of the tokenizer have one score"),
    ("llama", {"tokenizer.ggml.precompiled_charsmap": [1]}, "precompiled_charsmap"),
])  # fmt: skip
def test_pieces_that_are_not_sure_are_refused_by_name(tmp_path, architecture, changes, sentence):
    if "tokenizer.ggml.scores" in changes and len(changes["tokenizer.ggml.scores"]) > 1:
        changes = {"tokenizer.ggml.scores": [0.0] * len(read_folder_vocabulary(FIXTURES / "mistral").ids)}
    file = converted_pieces("mistral", tmp_path / "m.gguf", architecture=architecture, **changes)
    with pytest.raises(CheckpointError, match=sentence):
        load_gguf_tokenizer(file, TokenizerPolicy())


@pytest.mark.parametrize(("pre", "meant"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("gpt-2", False)])
def test_a_file_that_says_nothing_of_bos_means_what_llama_cpp_takes_it_to_mean(tmp_path, pre, meant):
    silent = converted("llama3", tmp_path / "silent.gguf", **{"tokenizer.ggml.pre": pre})
    assert load_gguf_tokenizer(silent, TokenizerPolicy()).policy.add_bos is meant
    flags = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": not meant}
    assert (
        load_gguf_tokenizer(converted("llama3", tmp_path / "m.gguf", **flags), TokenizerPolicy()).policy.add_bos
        is not meant
    )


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_a_saved_tokenizer_of_every_split_comes_back_the_same(tmp_path, pre):
    file = converted("gpt2", tmp_path / "m.gguf", **{"tokenizer.ggml.pre": pre})
    tokenizer = load_gguf_tokenizer(file, TokenizerPolicy(add_bos=False))
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.tokenizer_id == tokenizer.tokenizer_id
    texts = random_texts(200)
    assert [i.tolist() for i in again.encode(texts)] == [i.tolist() for i in tokenizer.encode(texts)]


def test_a_saved_tokenizer_of_an_engine_built_before_there_were_chats_is_still_read(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    tokenizer = load_gguf_tokenizer(GgufFile(path), TokenizerPolicy())
    tokenizer.save(tmp_path)
    # As `tokenizers` 0.23 wrote it from its own objects: merges joined by a space, and the split spelled another way.
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    content["pre_tokenizer"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert json.loads((tmp_path / "tokenizer_policy.json").read_text()) == {
        "tokenizer_id": "9fa8faa498da25200b316cd26cf05f6d",
        "pre_tokenizer": "smollm",
        "bos_id": 1,
        "eos_id": 2,
        "pad_id": 2,
        "unknown_id": 0,
        "policy": {
            "add_bos": False, "add_eos": False, "parse_special": True, "over_long": "refuse", "max_tokens": 2048,
        },
    }  # fmt: skip
    again = load_tokenizer(tmp_path)
    assert again.encode(["the  12"])[0].tolist() == tokenizer.encode(["the  12"])[0].tolist()
