"""Policy, truncation, identity and the round trip through a folder; exact ids are checked in tests/graph."""

import json

import numpy as np
import pytest

from resources.checkpoint import TokenizerPolicy, load_tokenizer, open_checkpoint
from resources.checkpoint.gguf_file import GgufFile
from resources.errors import CheckpointError, ConfigurationError
from tests.tiny import tiny_gguf

BOS, EOS = 1, 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(str(tiny_gguf(tmp_path_factory.mktemp("tokenizer") / "tiny.gguf")))


def ids(checkpoint, text, **policy):
    return checkpoint.tokenizer(TokenizerPolicy(**policy)).encode([text])[0].tolist()


def test_texts_are_encoded_in_order_as_int32(checkpoint):
    texts = ["the", "", "and 12", "𝄞 é\n\t"]
    tokenizer = checkpoint.tokenizer(TokenizerPolicy())
    encoded = tokenizer.encode(texts)
    assert [e.dtype for e in encoded] == [np.int32] * 4
    assert [tokenizer.decode(e) for e in encoded] == texts
    assert len(encoded[1]) == 0


def test_a_digit_stands_alone_and_leaves_the_spaces_before_it_together(checkpoint):
    tokenizer = checkpoint.tokenizer(TokenizerPolicy())
    assert [tokenizer.decode([i]) for i in tokenizer.encode(["the  12"])[0]] == ["the", "  ", "1", "2"]


@pytest.mark.parametrize(("policy", "frame"), [
    ({}, ([], [])),
    ({"add_bos": True}, ([BOS], [])),
    ({"add_eos": True}, ([], [EOS])),
    ({"add_bos": True, "add_eos": True}, ([BOS], [EOS])),
])  # fmt: skip
def test_bos_and_eos_are_added_as_the_policy_says(checkpoint, policy, frame):
    body = ids(checkpoint, "the and")
    assert ids(checkpoint, "the and", **policy) == [*frame[0], *body, *frame[1]]


def test_what_the_policy_leaves_open_is_as_the_checkpoint_says(tmp_path):
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", metadata=flags)))
    tokenizer = checkpoint.tokenizer(TokenizerPolicy())
    assert (tokenizer.policy.add_bos, tokenizer.policy.add_eos) == (True, True)
    assert ids(checkpoint, "the")[0] == BOS
    assert ids(checkpoint, "the")[-1] == EOS
    assert ids(checkpoint, "the", add_bos=False, add_eos=False) == ids(checkpoint, "the")[1:-1]


def test_a_control_token_in_the_text_is_parsed_or_spelled_out(checkpoint):
    assert ids(checkpoint, "the<|im_end|>") == [*ids(checkpoint, "the"), EOS]
    spelled = ids(checkpoint, "the<|im_end|>", parse_special=False)
    assert EOS not in spelled
    assert checkpoint.tokenizer(TokenizerPolicy()).decode(spelled) == "the<|im_end|>"


def test_a_user_defined_token_is_matched_whole_and_is_not_special(tmp_path):
    kinds = [3, 3, 3, 4] + [1] * 269
    tokens = GgufFile(tiny_gguf(tmp_path / "tokens.gguf")).value("tokenizer.ggml.tokens", list)
    tokens[3] = "<think>"
    metadata = {"tokenizer.ggml.token_type": kinds, "tokenizer.ggml.tokens": tokens}
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", metadata=metadata)))
    for parse_special in (True, False):
        tokenizer = checkpoint.tokenizer(TokenizerPolicy(parse_special=parse_special))
        assert 3 in tokenizer.encode(["a<think>a"])[0]
        assert tokenizer.special_ids == {0, 1, 2}


@pytest.mark.parametrize(("policy", "length", "expected"), [
    ({"max_tokens": 5}, 5, [10, 11, 12, 13, 14]),
    ({"max_tokens": 4}, 5, None),
    ({"max_tokens": 3, "over_long": "truncate_left"}, 5, [12, 13, 14]),
    ({"max_tokens": 3, "over_long": "truncate_right"}, 5, [10, 11, 12]),
    ({"max_tokens": 1, "over_long": "truncate_left"}, 5, [14]),
])  # fmt: skip
def test_an_over_long_sequence_is_refused_or_cut_on_the_named_side(checkpoint, policy, length, expected):
    fitted, truncated = checkpoint.tokenizer(TokenizerPolicy(**policy)).fit(np.arange(10, 10 + length, dtype=np.int32))
    assert (None if fitted is None else fitted.tolist()) == expected
    assert truncated == (expected is not None and len(expected) < length)
    assert fitted is None or fitted.dtype == np.int32


@pytest.mark.parametrize(("side", "body"), [("truncate_left", [17, 18, 19]), ("truncate_right", [10, 11, 12])])
def test_cutting_keeps_the_bos_and_eos_that_the_policy_added(checkpoint, side, body):
    policy = TokenizerPolicy(add_bos=True, add_eos=True, max_tokens=5, over_long=side)
    fitted, truncated = checkpoint.tokenizer(policy).fit(np.array([BOS, *range(10, 20), EOS], dtype=np.int32))
    assert fitted is not None
    assert fitted.tolist() == [BOS, *body, EOS]
    assert truncated


def test_given_ids_without_bos_are_cut_to_the_whole_limit(checkpoint):
    policy = TokenizerPolicy(add_bos=True, max_tokens=4, over_long="truncate_left")
    fitted, _ = checkpoint.tokenizer(policy).fit(np.arange(10, 20, dtype=np.int32))
    assert fitted is not None
    assert fitted.tolist() == [16, 17, 18, 19]


def test_a_token_that_the_checkpoint_does_not_name_cannot_be_added(tmp_path):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "m.gguf", without=("tokenizer.ggml.bos_token_id",))))
    with pytest.raises(ConfigurationError, match="add_bos is set, but the checkpoint names no such token"):
        checkpoint.tokenizer(TokenizerPolicy(add_bos=True))


@pytest.mark.parametrize("policy", [
    {"add_bos": True}, {"add_eos": True}, {"parse_special": False}, {"over_long": "truncate_left"}, {"max_tokens": 7},
])  # fmt: skip
def test_every_part_of_the_policy_is_part_of_the_identity(checkpoint, policy):
    plain = checkpoint.tokenizer(TokenizerPolicy())
    assert checkpoint.tokenizer(TokenizerPolicy(**policy)).tokenizer_id != plain.tokenizer_id
    assert checkpoint.tokenizer(TokenizerPolicy(add_bos=False, add_eos=False)).tokenizer_id == plain.tokenizer_id


def test_the_identity_is_the_same_in_every_process_and_release(checkpoint):
    # A stored work item names this id; if it must change, so must the tables.
    assert checkpoint.tokenizer(TokenizerPolicy()).tokenizer_id == "9fa8faa498da25200b316cd26cf05f6d"


@pytest.mark.parametrize("policy", [{}, {"add_bos": True, "add_eos": True, "parse_special": False, "max_tokens": 9}])
def test_a_saved_tokenizer_comes_back_the_same(checkpoint, tmp_path, policy):
    tokenizer = checkpoint.tokenizer(TokenizerPolicy(**policy))
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    texts = ["the and  12 <|im_start|> é", ""]
    assert (again.tokenizer_id, again.policy, again.special_ids, again.vocab_size) == (
        *(tokenizer.tokenizer_id, tokenizer.policy, tokenizer.special_ids, 273),
    )
    assert [e.tolist() for e in again.encode(texts)] == [e.tolist() for e in tokenizer.encode(texts)]


def test_a_saved_tokenizer_that_was_changed_is_refused(checkpoint, tmp_path):
    checkpoint.tokenizer(TokenizerPolicy()).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"].pop()
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="its files were changed since"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("damage", ["tokenizer.json", "tokenizer_policy.json"])
def test_a_damaged_or_missing_saved_tokenizer_is_refused(checkpoint, tmp_path, damage):
    checkpoint.tokenizer(TokenizerPolicy()).save(tmp_path)
    for content in ("{", "{}", "[]", '{"policy": {"over_long": "no"}}'):
        (tmp_path / damage).write_text(content)
        with pytest.raises(CheckpointError, match="is damaged"):
            load_tokenizer(tmp_path)
    (tmp_path / damage).unlink()
    with pytest.raises(CheckpointError, match="has no saved tokenizer"):
        load_tokenizer(tmp_path)
