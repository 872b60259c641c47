"""What is not handled is refused by name."""

import numpy as np
import pytest

from resources.checkpoint import open_checkpoint
from resources.errors import CheckpointError
from tests.tiny import tiny_gguf


def test_the_fields_are_read(tmp_path):
    shape = {"hidden": 48, "layers": 3, "heads": 6, "kv_heads": 2, "head_dim": 16, "ffn": 80, "max_positions": 99}
    path = tiny_gguf(tmp_path / "m.gguf", **shape)
    config = open_checkpoint(str(path)).config
    assert (config.architecture, config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (
        *("llama", 48, 80, 3),
    )
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (6, 2, 16)
    assert (config.vocab_size, config.max_position_embeddings, config.rope_theta) == (273, 99, 10000.0)
    assert config.rms_norm_eps == np.float32(1e-5)


@pytest.mark.parametrize(("without", "field", "expected"), [
    ("llama.attention.head_count_kv", "num_key_value_heads", 4),
    ("llama.attention.key_length", "head_dim", 16),
    ("llama.rope.dimension_count", "head_dim", 16),
    ("llama.rope.freq_base", "rope_theta", 10000.0),
    ("llama.vocab_size", "vocab_size", 273),
])  # fmt: skip
def test_an_optional_key_has_the_default_of_llama_cpp(tmp_path, without, field, expected):
    path = tiny_gguf(tmp_path / "m.gguf", kv_heads=4, without=(without,))
    assert getattr(open_checkpoint(str(path)).config, field) == expected


@pytest.mark.parametrize(("metadata", "sentence"), [
    ({"general.architecture": "gemma2"}, "architecture 'gemma2'; supported: llama"),
    ({"general.type": "adapter"}, "holds a 'adapter', not a model"),
    ({"llama.rope.scaling.type": "yarn"}, r"'llama\.rope\.scaling\.type'"),
    ({"llama.rope.scaling.factor": np.float32(8)}, r"'llama\.rope\.scaling\.factor'"),
    ({"llama.attention.sliding_window": np.uint32(64)}, r"'llama\.attention\.sliding_window'"),
    ({"llama.expert_count": np.uint32(8)}, r"'llama\.expert_count'"),
    ({"llama.attention.causal": False}, r"'llama\.attention\.causal'"),
    ({"gemma.attn_logit_softcapping": np.float32(50)}, r"'gemma\.attn_logit_softcapping'"),
    ({"adapter.lora.alpha": np.float32(16)}, r"'adapter\.lora\.alpha'"),
    ({"split.count": np.uint32(2)}, r"'split\.count'"),
    ({"llama.rope.dimension_count": np.uint32(8)}, r"'llama\.rope\.dimension_count' .* is 8; only the head's 16"),
    ({"llama.attention.value_length": np.uint32(8)}, r"'llama\.attention\.value_length' .* is 8"),
    ({"llama.attention.head_count": [4, 2]}, "is '.4, 2.', a list; expected int"),
    ({"llama.attention.head_count": np.uint32(0)}, "0 heads"),
    ({"llama.attention.head_count_kv": np.uint32(3)}, "4 heads over 3 key-value heads"),
    ({"llama.attention.layer_norm_rms_epsilon": np.float32(0)}, "rms_norm_eps .* is 0"),
    ({"llama.rope.freq_base": np.float32("inf")}, "rope_theta .* is inf"),
    ({"llama.rope.freq_base": np.uint32(10000)}, "an? int; expected float"),
    ({"llama.block_count": np.uint32(3)}, r"no tensor 'blk\.2\.attn_norm\.weight'"),
    ({"llama.block_count": np.uint32(2**31)}, "2147483648 layers and holds 20 tensors"),
    ({"llama.block_count": np.uint32(1)}, r"not handled: blk\.1\.attn_k\.weight"),
    ({"llama.feed_forward_length": np.uint32(64)}, r"'blk\.0\.ffn_gate\.weight' .* \[128, 64\]; .* says \[64, 64\]"),
    ({"llama.vocab_size": np.uint32(300)}, r"'token_embd\.weight' .* shape \[273, 64\]; .* says \[300, 64\]"),
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
        "token_embd.weight",
        "blk.1.attn_v.weight",
        "output_norm.weight",
    ],
)
def test_what_is_missing_is_named(tmp_path, missing):
    path = tiny_gguf(tmp_path / "m.gguf", without=(missing,))
    with pytest.raises(CheckpointError, match=f"'{missing}'"):
        open_checkpoint(str(path))


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.1.attn_q_norm.weight", "rope_freqs.weight"])
def test_a_tensor_that_llama_has_no_use_for_is_refused(tmp_path, name):
    path = tiny_gguf(tmp_path / "m.gguf", tensors={name: np.ones(16, dtype=np.float32)})
    with pytest.raises(CheckpointError, match=f"not handled: {name}"):
        open_checkpoint(str(path))


def test_a_language_model_head_of_its_own_is_left_alone(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf", tensors={"output.weight": np.ones((273, 64), dtype=np.float32)})
    assert open_checkpoint(str(path)).config.vocab_size == 273
