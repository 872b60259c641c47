"""A tokenizer that would cut text in a way that is not handled is refused by name."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from resources.checkpoint import TokenizerPolicy, load_tokenizer, open_checkpoint
from resources.checkpoint.byte_level import SPLITS
from resources.checkpoint.gguf_file import GgufFile
from resources.checkpoint.tokenizer_folder import read_folder_vocabulary
from resources.checkpoint.tokenizer_gguf import load_gguf_tokenizer
from resources.errors import CheckpointError
from resources.records import Message
from tests.fixtures.reference.texts import random_texts
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


FIXTURES = Path(__file__).parents[1] / "fixtures" / "tokenizers"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))["tokenizers"]


def converted(name, path, **changes):
    """A GGUF file with the tokenizer of a fixture's folder, as llama.cpp's converter writes it."""
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
