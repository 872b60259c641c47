"""A GGUF file's metadata and tensors in transformers' words; what is not handled is refused by name."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from resources.checkpoint import gguf_file, open_checkpoint, safetensors_folder
from resources.checkpoint.architectures import ARCHITECTURES, read_config
from resources.checkpoint.config import tensor_specs
from resources.checkpoint.gguf_families import GGUF_FAMILIES
from resources.checkpoint.gguf_file import GgufFile
from resources.checkpoint.gguf_models import GgufModel
from resources.checkpoint.safetensors_folder import SafetensorsFolder
from resources.errors import CheckpointError
from resources.graph import write_packed_graph
from tests.checkpoint.architectures.references import CHECKPOINTS, Reference
from tests.checkpoint.gguf_writing import write_gguf
from tests.graph.running import Graph, relative_errors
from tests.tiny import tiny_gguf

LOST = {
    "llama2": {},
    "llama3": {},
    "llama_biased": {},
    "llama_linear": {},
    "llama_yarn": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen2_window": {"use_sliding_window": False},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3": {"query_pre_attn_scalar": 12},
    "gpt2": {},
    "phi3": {},
    "phi3_longrope": {},
    "olmo2": {},
    "granite": {},
    "smollm3": {},
}
"""Checkpoints, each with the settings that a GGUF file of it has no words for, as they come back from one."""


@pytest.fixture(scope="module", params=LOST)
def pair(request, tmp_path_factory):
    """(name, a checkpoint's folder, a GGUF file converted from it)."""
    path = tmp_path_factory.mktemp("pair")
    folder = shutil.copytree(CHECKPOINTS / request.param, path / "folder")
    config = json.loads((folder / "config.json").read_text()) | LOST[request.param]
    (folder / "config.json").write_text(json.dumps(config))
    return request.param, folder, write_gguf(SafetensorsFolder(folder), path / "converted.gguf")


def test_a_converted_file_is_the_model_that_it_was_converted_from(pair):
    _, folder, path = pair
    ours, theirs = open_checkpoint(str(path)), open_checkpoint(str(folder))
    assert tensor_specs(ours.config) == tensor_specs(theirs.config)
    for spec in tensor_specs(ours.config):
        np.testing.assert_allclose(ours.tensor(spec.name), theirs.tensor(spec.name), rtol=0, atol=2e-7)
    found, expected = (dict(leaves(dataclasses.asdict(c.config))) for c in (ours, theirs))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=2e-7), name
        elif name != ".architecture":
            assert found[name] == value, name


def test_a_weight_in_pieces_is_the_weight(pair, monkeypatch):
    monkeypatch.setattr(gguf_file, "PIECE", 100)
    monkeypatch.setattr(safetensors_folder, "PIECE", 100)
    for source in pair[1:]:
        checkpoint = open_checkpoint(str(source))
        assert len(list(checkpoint.pieces("embed_tokens.weight"))) > 1
        for spec in tensor_specs(checkpoint.config):
            pieces = np.concatenate(list(checkpoint.pieces(spec.name)))
            np.testing.assert_array_equal(pieces, checkpoint.tensor(spec.name))


def test_no_key_is_ignored(pair, monkeypatch):
    """Of the values that are put in place of a key's own, some are refused or make another decoder."""
    path, value, read = pair[2], GgufFile.value, {}

    def config(replaced):
        def found(file, key, kind, default=...):
            read[key] = replaced.get(key, value(file, key, kind, default)), kind
            return read[key][0]

        monkeypatch.setattr(GgufFile, "value", found)
        return read_config(GgufModel(path).config, where="it")

    def matters(key, other):
        try:
            return config({key: other}) != known
        except CheckpointError:
            return True

    known = config({})
    ignored = {
        key for key, (found, kind) in list(read.items()) if not any(matters(key, o) for o in flipped(found, kind))
    }
    assert ignored == ({"phi3.rope.scaling.original_context_length"} if pair[0] == "phi3" else set())


def flipped(found, kind):
    """Other values that the key might have, where it has one and where it has none."""
    kind = kind[-1] if isinstance(kind, tuple) else kind
    if found is None:
        return {int: [3], float: [0.75], str: ["other"], bool: [False]}[kind]
    if isinstance(found, bool):
        return [not found]
    if isinstance(found, str):
        return [f"{found}_x"]
    return [found + 1, found * 8, *([found / 100] if kind is float else [])]


def leaves(value, name=""):
    """Every value inside of nested dictionaries and sequences, with the way to it."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from leaves(inner, f"{name}.{key}")
    else:
        yield name, value


def test_a_converted_file_gives_the_same_vectors(pair, tmp_path):
    name, folder, path = pair
    sequences = Reference.read(name).up_to(128).sequences
    vectors = []
    for kind, source in (("folder", folder), ("gguf", path)):
        write_packed_graph(open_checkpoint(str(source)), tmp_path / f"{kind}.onnx")
        vectors.append(Graph(tmp_path / f"{kind}.onnx")(sequences))
    assert relative_errors(vectors[1], vectors[0]).max() <= 1e-5


def test_every_family_of_gguf_is_tried():
    types = {json.loads((CHECKPOINTS / name / "config.json").read_text())["model_type"] for name in LOST}
    assert {family.model_type for family in GGUF_FAMILIES.values()} == (types - {"mistral"}) & ARCHITECTURES.keys()


def test_the_fields_are_read(tmp_path):
    shape = {"hidden": 48, "layers": 3, "heads": 6, "kv_heads": 2, "head_dim": 16, "ffn": 80, "max_positions": 99}
    path = tiny_gguf(tmp_path / "m.gguf", **shape)
    config = open_checkpoint(str(path)).config
    assert (config.architecture, config.hidden_size, config.num_hidden_layers) == ("llama", 48, 3)
    assert (config.attention.heads, config.attention.groups, config.attention.head_dim) == (6, 2, 16)
    assert (config.mlp.intermediate_size, config.vocab_size, config.max_position_embeddings) == (80, 273, 99)
    assert config.residual.norm.epsilon == np.float32(1e-5)


@pytest.mark.parametrize("without", [
    "llama.attention.head_count_kv", "llama.attention.key_length", "llama.rope.dimension_count",
    "llama.rope.freq_base", "llama.vocab_size",
])  # fmt: skip
def test_an_optional_key_has_the_default_of_llama_cpp(tmp_path, without):
    whole, path = (tiny_gguf(tmp_path / f"{len(keys)}.gguf", kv_heads=4, without=keys) for keys in ((), (without,)))
    assert open_checkpoint(str(path)).config == open_checkpoint(str(whole)).config


YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": np.float32(2),
    "llama.rope.scaling.original_context_length": np.uint32(256),
}


@pytest.mark.parametrize(("metadata", "sentence"), [
    ({"general.architecture": "mamba"}, "architecture 'mamba'; supported: llama, qwen2"),
    ({"general.type": "adapter"}, "holds a 'adapter', not a model"),
    ({"llama.rope.scaling.type": "yarn"}, r"no 'llama\.rope\.scaling\.factor', which is needed"),
    ({"llama.rope.scaling.type": "cubic"}, r"'llama\.rope\.scaling\.type' .* is 'cubic'"),
    ({"llama.rope.scaling.type": "longrope"}, r"'llama\.rope\.scaling\.type' .* is 'longrope'"),
    ({"llama.rope.scale_linear": np.float32(8)}, r"'llama\.rope\.scale_linear'"),
    (YARN | {"llama.rope.scaling.yarn_attn_factor": np.float32(2)}, r"yarn_attn_factor' .* is 2\.0; only 1\.0"),
    (YARN | {"llama.rope.scaling.yarn_log_multiplier": np.float32(2)}, r"'llama\.rope\.scaling\.yarn_log_multiplier'"),
    ({"llama.attention.sliding_window": np.uint32(64)}, r"'llama\.attention\.sliding_window'"),
    ({"llama.expert_count": np.uint32(8)}, r"'llama\.expert_count'"),
    ({"llama.attention.causal": False}, r"'llama\.attention\.causal'"),
    ({"gemma.attn_logit_softcapping": np.float32(50)}, r"'gemma\.attn_logit_softcapping'"),
    ({"adapter.lora.alpha": np.float32(16)}, r"'adapter\.lora\.alpha'"),
    ({"split.count": np.uint32(2)}, r"one of the 2 files \('split\.count'\) of a model; merge them"),
    ({"llama.rope.dimension_count": np.uint32(8)}, r"'llama\.rope\.dimension_count' .* is 8; only the head's 16"),
    ({"llama.attention.value_length": np.uint32(8)}, r"'llama\.attention\.value_length' .* is 8"),
    ({"llama.attention.head_count": [4, 2]}, "is '.4, 2.', a list; expected int"),
    ({"llama.attention.head_count": np.uint32(0)}, "'num_attention_heads' of .* is 0; supported: a positive integer"),
    ({"llama.attention.head_count_kv": np.uint32(3)}, "4 heads over 3 key-value heads"),
    ({"llama.attention.layer_norm_rms_epsilon": np.float32(0)}, "'rms_norm_eps' of .* is 0"),
    ({"llama.rope.freq_base": np.float32("inf")}, "'rope_theta' of .* is Infinity"),
    ({"llama.rope.freq_base": np.uint32(10000)}, "an? int; expected float"),
    ({"llama.block_count": np.uint32(3)}, r"no tensor 'model\.layers\.2\.input_layernorm\.weight'"),
    ({"llama.block_count": np.uint32(2**31)}, "2147483648 layers and holds 20 tensors"),
    ({"llama.block_count": np.uint32(1)}, r"not handled: model\.layers\.1\.input_layernorm\.weight"),
    ({"llama.feed_forward_length": np.uint32(64)}, r"gate_proj\.weight' .* \[128, 64\]; .* says \[64, 64\]"),
    ({"llama.vocab_size": np.uint32(300)}, r"'model\.embed_tokens\.weight' .* shape \[273, 64\]; .* says \[300, 64\]"),
])  # fmt: skip
def test_what_changes_the_mathematics_is_refused_by_name(tmp_path, metadata, sentence):
    path = tiny_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(CheckpointError, match=sentence):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    "missing",
    [
        "llama.embedding_length",
        "llama.context_length",
    ],
)
def test_a_missing_key_is_named(tmp_path, missing):
    path = tiny_gguf(tmp_path / "m.gguf", without=(missing,))
    with pytest.raises(CheckpointError, match=f"'{missing}'"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(("missing", "name"), [
    ("token_embd.weight", "vocab_size' .* is 0"),
    ("blk.1.attn_v.weight", r"no tensor 'model\.layers\.1\.self_attn\.v_proj\.weight'"),
    ("output_norm.weight", r"no tensor 'model\.norm\.weight'"),
])  # fmt: skip
def test_a_missing_tensor_is_named(tmp_path, missing, name):
    path = tiny_gguf(tmp_path / "m.gguf", without=(missing, "llama.vocab_size"))
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(str(path))


@pytest.mark.parametrize(("name", "named"), [
    ("blk.0.attn_q.bias", r"model\.layers\.0\.self_attn\.q_proj\.bias"),
    ("blk.1.attn_q_norm.weight", r"blk\.1\.attn_q_norm\.weight"),
    ("rope_freqs.bias", r"rope_freqs\.bias"),
])  # fmt: skip
def test_a_tensor_that_llama_has_no_use_for_is_refused(tmp_path, name, named):
    path = tiny_gguf(tmp_path / "m.gguf", tensors={name: np.ones(16, dtype=np.float32)})
    with pytest.raises(CheckpointError, match=f"not handled: {named}"):
        open_checkpoint(str(path))


def test_a_language_model_head_of_its_own_is_left_alone(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf", tensors={"output.weight": np.ones((273, 64), dtype=np.float32)})
    assert open_checkpoint(str(path)).config.vocab_size == 273


def test_a_file_that_another_takes_the_place_of_is_an_error(tmp_path):
    model = GgufModel(tiny_gguf(tmp_path / "tiny.gguf"))
    [name, *_] = model.shapes
    _ = model.digest
    tiny_gguf(tmp_path / "other.gguf").rename(tmp_path / "tiny.gguf")
    for read in (lambda: model.digest, lambda: model.tensor(name), lambda: list(model.pieces(name))):
        with pytest.raises(CheckpointError, match=r"tiny\.gguf changed since it was opened"):
            read()
