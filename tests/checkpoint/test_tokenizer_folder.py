"""Folders as transformers saves them give transformers' ids; see fixtures/tokenizers/make_tokenizers.py."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.tokenizer import load_tokenizer
from resources.checkpoint.tokenizer_folder import load_folder_tokenizer
from resources.errors import CheckpointError, ConfigurationError
from resources.records import Message
from tests.fixtures.reference.texts import random_texts

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tokenizers"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))["tokenizers"]
NAMES = sorted(EXPECTED)


def encoded(tokenizer, probes):
    return [ids.tolist() for ids in tokenizer.encode_probes(probes)]


def framing(token, *texts, ids=(2,)):
    """A post-processor that writes `token`, then each of `texts`."""
    return {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": token, "type_id": 0}},
            *({"Sequence": {"id": text, "type_id": 0}} for text in texts),
        ],
        "pair": [],
        "special_tokens": {token: {"id": token, "ids": list(ids), "tokens": [token]}},
    }


def messages(chat):
    return tuple(Message(**message) for message in chat)


@pytest.fixture
def copied(tmp_path):
    """Copies a fixture's folder; a file's keys are set, or left out where None is given."""

    def copy(name, **changes):
        shutil.copytree(FIXTURES / name, tmp_path, dirs_exist_ok=True)
        for stem, keys in changes.items():
            path = tmp_path / f"{stem}.json"
            content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            content = {k: v for k, v in (content | keys).items() if k not in keys or v is not None}
            path.write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return copy


@pytest.mark.parametrize("name", NAMES)
def test_the_ids_are_those_of_transformers(name, tmp_path):
    tokenizer = load_folder_tokenizer(FIXTURES / name, TokenizerPolicy())
    tokenizer.save(tmp_path)
    expected = EXPECTED[name]
    for same in (tokenizer, load_tokenizer(tmp_path)):
        assert same.tokenizer_id == tokenizer.tokenizer_id
        assert encoded(same, [t["text"] for t in expected["texts"]]) == [t["ids"] for t in expected["texts"]]
        random_ids = json.dumps(encoded(same, random_texts()), separators=(",", ":"))
        assert hashlib.sha256(random_ids.encode()).hexdigest() == expected["random_ids_sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_taken_as_characters_give_transformers_ids(name):
    tokenizer = load_folder_tokenizer(FIXTURES / name, TokenizerPolicy(parse_special=False))
    expected = EXPECTED[name]["spelled_out"]
    assert encoded(tokenizer, [t["text"] for t in expected]) == [t["ids"] for t in expected]


@pytest.mark.parametrize("chat", ["turns", "generation_prompt"])
@pytest.mark.parametrize("name", [name for name in NAMES if EXPECTED[name]["chats"]])
def test_a_chat_gives_transformers_ids_or_what_its_template_says(name, chat, tmp_path):
    tokenizer = load_folder_tokenizer(FIXTURES / name, TokenizerPolicy(chat=chat))
    tokenizer.save(tmp_path)
    for same in (tokenizer, load_tokenizer(tmp_path)):
        for expected in (c for c in EXPECTED[name]["chats"] if c["chat"] == chat):
            [ids] = same.encode_probes([messages(expected["messages"])])
            if isinstance(expected["ids"], str):
                assert (ids.reason, ids.detail) == ("chat-template-error", f"TemplateError: {expected['ids']}")
            else:
                assert ids.tolist() == expected["ids"]


def test_a_text_is_the_one_message_of_a_user_under_a_chat_template():
    tokenizer = load_folder_tokenizer(FIXTURES / "llama3", TokenizerPolicy(chat="generation_prompt"))
    text = "What is 2 + 2?"
    assert encoded(tokenizer, [text]) == encoded(tokenizer, [(Message("user", text),)])
    assert tokenizer.decode(tokenizer.encode([text])[0]).endswith("<|start_header_id|>assistant<|end_header_id|>\n\n")


@pytest.mark.parametrize(("name", "bos"), [("llama3", "<|begin_of_text|>"), ("mistral", "<s>"), ("gemma", "<bos>")])
@pytest.mark.parametrize("add_bos", [None, True, False])
def test_a_template_that_writes_bos_gets_no_second_one(name, bos, add_bos):
    tokenizer = load_folder_tokenizer(FIXTURES / name, TokenizerPolicy(chat="turns", add_bos=add_bos))
    [ids] = tokenizer.encode(["hello"])
    assert tokenizer.decode(ids).count(bos) == 1
    assert ids[0] == tokenizer.vocabulary.bos_id


def test_a_template_that_writes_no_eos_gets_one_when_asked_and_keeps_its_own():
    policy = TokenizerPolicy(chat="turns", add_eos=True)
    eos = load_folder_tokenizer(FIXTURES / "llama3", policy).vocabulary.eos_id
    ends = []
    for name in ("llama3", "qwen"):
        [ids] = load_folder_tokenizer(FIXTURES / name, policy).encode(["hello"])
        ends.append(ids[-2:].tolist())
    assert ends[0][-1] == eos != ends[0][-2]
    qwen = load_folder_tokenizer(FIXTURES / "qwen", policy)
    assert [qwen.spelled(i) for i in ends[1]] == ["\n", "<|im_end|>"]


@pytest.mark.parametrize(("name", "text", "reason"), [
    ("llama3", "<|begin_of_text|>hello", "second-bos"),
    ("mistral", "<s>", "second-bos"),
    ("unigram", "hello</s>", "second-eos"),
])  # fmt: skip
def test_a_text_that_brings_what_the_policy_adds_is_refused(name, text, reason):
    [ids] = load_folder_tokenizer(FIXTURES / name, TokenizerPolicy()).encode_probes([text])
    assert ids.reason == reason
    [ids] = load_folder_tokenizer(FIXTURES / name, TokenizerPolicy(add_bos=False, add_eos=False)).encode([text])
    assert len(ids)


def test_a_text_that_only_looks_like_bos_gets_one_when_special_tokens_are_characters():
    tokenizer = load_folder_tokenizer(FIXTURES / "mistral", TokenizerPolicy(parse_special=False))
    [ids] = tokenizer.encode(["<s>struck out</s>"])
    assert ids.tolist().count(tokenizer.vocabulary.bos_id) == 1


@pytest.mark.parametrize("library", ["a version that goes by the post-processor", "a version that goes by the flag"])
def test_an_eos_that_one_version_of_the_library_adds_and_another_does_not_must_be_decided(copied, library):
    by_flag = library.endswith("flag")
    folder = copied(
        "unigram",
        tokenizer={"post_processor": None} if by_flag else {},
        tokenizer_config={"add_eos_token": by_flag},
    )
    with pytest.raises(ConfigurationError, match=rf"'add_eos_token' of .* is {by_flag}, and .* add_eos to true or"):
        load_folder_tokenizer(folder, TokenizerPolicy())
    for add_eos in (True, False):
        [ids] = load_folder_tokenizer(folder, TokenizerPolicy(add_eos=add_eos)).encode(["hello"])
        assert (ids[-1] == 0) == add_eos


def test_eos_is_kept_when_a_text_is_cut_although_it_is_the_padding_too():
    policy = TokenizerPolicy(max_tokens=6, over_long="truncate_right")
    tokenizer = load_folder_tokenizer(FIXTURES / "unigram", policy)
    eos = tokenizer.vocabulary.eos_id
    assert eos == tokenizer.vocabulary.pad_id
    [ids] = tokenizer.encode(["the quick brown fox jumps over the lazy dog"])
    fitted, cut = tokenizer.fit(ids)
    assert cut and fitted.tolist() == [*ids[:5].tolist(), eos]


# Of these texts gemma's pieces come out the same again.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "gemma"])
def test_what_is_cut_is_a_piece_of_the_ids_whatever_its_text_would_be(name):
    policy = TokenizerPolicy(add_bos=False, add_eos=False, max_tokens=7, over_long="truncate_left")
    tokenizer = load_folder_tokenizer(FIXTURES / name, policy)
    again = 0
    for text in random_texts(300):
        [ids] = tokenizer.encode([text])
        fitted, cut = tokenizer.fit(ids)
        assert fitted.tolist() == ids[-7:].tolist() and cut == (len(ids) > 7)
        again += tokenizer.encode([tokenizer.decode(fitted)])[0].tolist() != fitted.tolist()
    assert again, "no cut text of these has other ids when it is decoded and tokenised again: choose other texts"


def test_cutting_a_chat_keeps_the_bos_that_its_template_wrote():
    policy = TokenizerPolicy(chat="generation_prompt", max_tokens=8, over_long="truncate_left")
    tokenizer = load_folder_tokenizer(FIXTURES / "llama3", policy)
    [ids] = tokenizer.encode(["hello"])
    fitted, cut = tokenizer.fit(ids)
    assert cut and fitted.tolist() == [ids[0], *ids[-7:]]


def test_a_message_that_spells_a_special_token_is_parsed_or_refused():
    chat = (Message("user", "x<|im_end|>"),)
    parsed = load_folder_tokenizer(FIXTURES / "qwen", TokenizerPolicy(chat="turns"))
    strict = load_folder_tokenizer(FIXTURES / "qwen", TokenizerPolicy(chat="turns", parse_special=False))
    eos = parsed.vocabulary.eos_id
    assert encoded(parsed, [chat])[0].count(eos) == 3
    assert strict.encode_probes([chat])[0].reason == "special-token-in-message"
    parts = strict.encode_probes([(Message("user<|im", "_end|>"),)])[0]
    assert parts.reason == "special-token-in-message"
    assert encoded(strict, ["plain"]) == encoded(parsed, ["plain"])


def test_variables_reach_the_template_and_the_identity():
    off = TokenizerPolicy(chat="generation_prompt", chat_variables='{"enable_thinking":  false}')
    plain = load_folder_tokenizer(FIXTURES / "qwen", TokenizerPolicy(chat="generation_prompt"))
    tokenizer = load_folder_tokenizer(FIXTURES / "qwen", off)
    assert tokenizer.decode(tokenizer.encode(["hi"])[0]).endswith("<think>\n\n</think>\n\n")
    assert tokenizer.tokenizer_id != plain.tokenizer_id
    spaced = TokenizerPolicy(chat="generation_prompt", chat_variables='{"enable_thinking":false}')
    assert load_folder_tokenizer(FIXTURES / "qwen", spaced).tokenizer_id == tokenizer.tokenizer_id


def test_a_chat_without_a_template_is_refused():
    with pytest.raises(ConfigurationError, match="the checkpoint has no chat template"):
        load_folder_tokenizer(FIXTURES / "gpt2", TokenizerPolicy(chat="turns"))
    [ids] = load_folder_tokenizer(FIXTURES / "qwen", TokenizerPolicy()).encode_probes([(Message("user", "hi"),)])
    assert ids.reason == "no-chat-template"


@pytest.mark.parametrize(("name", "changes", "sentence"), [
    ("qwen", {"tokenizer_config": {"split_special_tokens": True}}, "sets 'split_special_tokens'"),
    ("qwen", {"tokenizer_config": {"fix_mistral_regex": True}}, "sets 'fix_mistral_regex'"),
    ("qwen", {"tokenizer_config": {"auto_map": {"AutoTokenizer": ["x.Y", None]}}}, "sets 'auto_map'"),
    ("qwen", {"tokenizer_config": {"add_prefix_space": True}}, "'add_prefix_space' of .* is True"),
    ("mistral", {"tokenizer_config": {"add_prefix_space": False}}, "'add_prefix_space' of .* is False"),
    ("gemma", {"tokenizer_config": {"bos_token": "<eos>"}}, r"puts \['<bos>'\] around a text, and its bos_token"),
    ("gemma", {"tokenizer": {"post_processor": {"type": "BertProcessing"}}}, "post-processor 'BertProcessing'"),
    ("gemma", {"tokenizer": {"post_processor": framing("<bos>", "A", ids=[0])}}, r"writes '<bos>' as \[0\], and .* 2;"),
    ("gemma", {"tokenizer": {"post_processor": framing("<bos>")}}, "writes a text 0 times; expected once"),
    ("gemma", {"tokenizer": {"post_processor": framing("<bos>", "A", "A")}}, "writes a text 2 times; expected once"),
    ("gemma", {"tokenizer_config": {"do_lower_case": True}}, "sets 'do_lower_case'"),
    ("gemma", {"tokenizer": {"model": None}}, "is no tokenizer of the tokenizers library"),
    ("gemma", {"tokenizer": {"normalizer": {"type": "Unheard"}}}, "cannot be built"),
    ("gpt2", {"tokenizer_config": {"added_tokens_decoder": {"5": {"content": "<new>"}}}}, "gives '<new>' the id"),
    ("gpt2", {"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "is not as transformers writes it"),
])  # fmt: skip
def test_what_is_not_handled_is_refused_by_name(copied, name, changes, sentence):
    with pytest.raises(CheckpointError, match=sentence):
        load_folder_tokenizer(copied(name, **changes), TokenizerPolicy())


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_link_to_a_file_that_is_gone_is_not_taken_for_no_file(copied, file):
    folder = copied("qwen")
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to(folder / "gone")
    with pytest.raises(CheckpointError, match=f"{file} cannot be read"):
        load_folder_tokenizer(folder, TokenizerPolicy())


def test_dropout_is_refused(copied):
    folder = copied("qwen")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"dropout": null', '"dropout": 0.1'), encoding="utf-8")
    with pytest.raises(CheckpointError, match="sets dropout"):
        load_folder_tokenizer(folder, TokenizerPolicy())


def test_a_folder_without_tokenizer_json_is_told_how_to_make_one(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json; make one with transformers: AutoTokenizer"):
        load_folder_tokenizer(tmp_path, TokenizerPolicy())


def test_cutting_and_padding_that_the_file_asks_for_are_not_done(copied):
    folder = copied(
        "gpt2",
        tokenizer={
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0,
                        "pad_type_id": 0, "pad_token": "!"},
        },
    )  # fmt: skip
    same = load_folder_tokenizer(FIXTURES / "gpt2", TokenizerPolicy())
    tokenizer = load_folder_tokenizer(folder, TokenizerPolicy())
    assert encoded(tokenizer, ["hello there"]) == encoded(same, ["hello there"])
    assert tokenizer.tokenizer_id == same.tokenizer_id


@pytest.mark.parametrize("changes", [
    {"tokenizer_config": {"eos_token": None}, "special_tokens_map": {"eos_token": "<|im_end|>"}},
    {"tokenizer_config": {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "lstrip": False}}},
])  # fmt: skip
def test_a_named_token_may_stand_in_either_file_and_form(copied, changes):
    assert load_folder_tokenizer(copied("qwen", **changes), TokenizerPolicy()).vocabulary.eos_id == 420


@pytest.mark.parametrize("changes", [
    {"tokenizer_config": {"added_tokens_decoder": {"424": {"content": "<tool>", "special": True}}}},
    {"tokenizer_config": {"additional_special_tokens": ["<tool>"], "extra_special_tokens": None}},
    {"added_tokens": {"<tool>": 424}},
])  # fmt: skip
def test_a_token_that_only_another_file_adds_is_matched_whole(copied, changes):
    folder = copied("llama3", **changes)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["added_tokens"].pop()
    path.write_text(json.dumps(content), encoding="utf-8")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|end_of_text|>"}))
    assert 424 in load_folder_tokenizer(folder, TokenizerPolicy()).encode(["a<tool>b"])[0]


def test_a_list_of_templates_gives_the_default_one(copied):
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}!"}]
    folder = copied("gpt2", tokenizer_config={"chat_template": templates})
    tokenizer = load_folder_tokenizer(folder, TokenizerPolicy(chat="turns"))
    assert tokenizer.decode(tokenizer.encode(["hi"])[0]) == "hi!"


@pytest.mark.peer
def test_transformers_gives_the_same_ids_again(tmp_path):
    python = os.environ.get("FABRIC_PEER_PYTHON")
    if not python:
        pytest.fail("set FABRIC_PEER_PYTHON to a Python with transformers, tokenizers and jinja2")
    shutil.copytree(FIXTURES, tmp_path, dirs_exist_ok=True)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([python, FIXTURES / "make_tokenizers.py", tmp_path], check=True, env=environment)
    assert json.loads((tmp_path / "expected.json").read_text(encoding="utf-8"))["tokenizers"] == EXPECTED
