"""A damaged file is a CheckpointError, never another exception, and never a hang."""

import random

import numpy as np
import pytest

from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.checkpoint.gguf_file import GgufFile
from resources.errors import CheckpointError
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "whole.gguf", hidden=32, layers=1, ffn=32)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.gguf cannot be read: No such file"):
        GgufFile(tmp_path / "none.gguf")


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip file", b"FUGG" + bytes(100)])
def test_a_file_of_another_kind_is_told_by_its_first_bytes(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        GgufFile(path)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.05, 0.1, 0.3, 0.6, 0.99, 0.99999])
def test_a_file_cut_short_is_refused(whole, tmp_path, share):
    content = whole.read_bytes()
    path = tmp_path / "short.gguf"
    path.write_bytes(content[: max(5, int(len(content) * share))])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        GgufFile(path)


def test_flipped_bytes_are_refused_or_harmless(whole, tmp_path):
    content = whole.read_bytes()
    header = len(content) - sum(4 * int(np.prod(shape)) for shape in GgufFile(whole).shapes.values())
    source = random.Random(0)
    path = tmp_path / "flipped.gguf"
    refused = 0
    for _ in range(300):
        flipped = bytearray(content)
        flipped[source.randrange(4, header)] = source.randrange(256)
        path.write_bytes(flipped)
        try:
            checkpoint = open_checkpoint(str(path))
            checkpoint.tokenizer(TokenizerPolicy()).encode(["the 12 <|im_end|>"])
        except CheckpointError:
            refused += 1
    assert refused > 100


def test_a_length_past_the_end_is_refused_at_once(whole, tmp_path):
    content = bytearray(whole.read_bytes())
    name = b"tokenizer.ggml.token_type"
    # Behind the key: its type (uint32), the elements' type (uint32), their number (uint64).
    number = content.index(name) + len(name) + 8
    content[number : number + 8] = (1 << 62).to_bytes(8, "little")
    path = tmp_path / "endless.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        GgufFile(path)


@pytest.mark.parametrize(("key", "kind", "sentence"), [
    ("general.name", int, "a str; expected int"),
    ("llama.block_count", float, "a int; expected float"),
    ("llama.rope.freq_base", int, "a float; expected int"),
    ("general.nothing", str, "has no 'general.nothing'"),
])  # fmt: skip
def test_a_value_of_the_wrong_kind_is_named(whole, key, kind, sentence):
    with pytest.raises(CheckpointError, match=sentence):
        GgufFile(whole).value(key, kind)
