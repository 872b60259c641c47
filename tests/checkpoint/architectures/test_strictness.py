"""What a configuration says is taken, refused by name, or known to decide nothing: never ignored."""

import contextlib

import pytest

from resources.checkpoint.architectures import read_config, read_sources
from resources.checkpoint.architectures.reader import HARMLESS
from resources.checkpoint.safetensors_folder import SafetensorsFolder
from resources.errors import CheckpointError
from tests.checkpoint.architectures.references import CHECKPOINTS, NAMES, read_values

WITHOUT_ROTARY = {"gpt2", "gpt2_base"}

UNUSED = {
    "llama_dynamic": {"rope_scaling.factor"},
    "qwen2": {"max_window_layers", "sliding_window", "use_sliding_window"},
    "qwen3": {"max_window_layers", "sliding_window", "use_sliding_window"},
    "gemma2": {"hidden_act"},
    "phi3": {"original_max_position_embeddings"},
    "gpt_neox_sequential": {"attention_probs_dropout_prob", "hidden_dropout_prob"},
    "gpt2": {"n_ctx"},
    "gpt2_base": {"n_ctx"},
    "granite": {"logits_scaling"},
    "smollm3": {"max_window_layers", "no_rope_layer_interval", "sliding_window", "use_sliding_window"},
    "smollm3_window": {"max_window_layers"},
}
"""Keys that a family reads, or knows, and that decide nothing in this configuration."""

REFUSED = [
    ("llama2", {"model_type": "llama4"}, "it holds the architecture 'llama4'; supported: llama, "),
    ("llama2", {"architectures": ["LlamaBiModel"]}, r"'architectures' of it is \[\"LlamaBiModel\"\]; supported: Llama"),
    ("llama2", {"architectures": "LlamaForCausalLM"}, "'architectures' of it is \"LlamaForCausalLM\""),
    ("llama2", {"num_key_value_heads": 3}, "it has 4 heads over 3 key-value heads; expected a multiple"),
    ("llama2", {"head_dim": 9}, "turns 9.0 of a head's 9 dimensions; expected an even number"),
    ("llama2", {"hidden_act": "relu"}, "'hidden_act' of it is \"relu\"; supported: silu, "),
    ("llama2", {"rope_scaling": {"type": "ntk", "factor": 2.0}}, "the rotary kind .* is 'ntk'"),
    ("llama2", {"partial_rotary_factor": 0.5}, r"'partial_rotary_factor' of it is 0\.5"),
    ("llama2", {"original_max_position_embeddings": 64}, "'original_max_position_embeddings', which may change"),
    ("llama2", {"num_hidden_layers": 2**31}, "'num_hidden_layers' of it is 2147483648; supported: at most"),
    ("llama2", {"rope_interleaved": True}, "'rope_interleaved' of it is true; supported: false"),
    ("llama2", {"quantization": {"bits": 4}}, "'quantization', which may change the mathematics"),
    ("llama2", {"quantization_config": {"bits": 4}}, "'quantization_config' of it is"),
    (
        "llama2",
        {"rope_parameters": {"rope_theta": 5000.0}},
        r"'rope_theta' of it is 10000\.0, and 'rope_theta' of .* 5000",
    ),
    ("mistral", {"layer_types": ["full_attention"] * 2}, "'layer_types', which may change the mathematics"),
    ("mistral", {"sliding_window": 0}, "'sliding_window' of it is 0"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "where there is no sliding window"),
    ("qwen2", {"layer_types": ["full_attention"]}, r"'layer_types' of it is .*; supported: a list of 2"),
    ("qwen2", {"attention_bias": True}, "'attention_bias', which may change the mathematics"),
    ("qwen2", {"use_mrope": True}, "'use_mrope' of it is true; supported: false"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 2}, "'layer_types' of it is"),
    ("gemma2", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' of it is true"),
    ("gemma2", {"hidden_activation": "relu"}, "'hidden_activation' of it is \"relu\""),
    ("gemma3", {"attn_logit_softcapping": 50.0}, r"'attn_logit_softcapping' of it is 50\.0; supported: null"),
    ("gemma3", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "sets both"),
    (
        "gemma3",
        {"rope_parameters": {"sliding_attention": {"rope_theta": 5}}},
        "'rope_local_base_freq' of it is 10000, and",
    ),
    ("gemma3", {"model_type": "gemma3"}, "it holds the architecture 'gemma3'"),
    ("gpt2", {"n_head": 3}, "'n_head' of it is 3; supported: a divisor of 'n_embd', 32"),
    ("gpt2", {"scale_attn_weights": False}, "'scale_attn_weights' of it is false; supported: true"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "'scale_attn_by_inverse_layer_idx' of it is true"),
    ("gpt2", {"add_cross_attention": True}, "'add_cross_attention' of it is true"),
    ("gpt2", {"activation_function": "relu"}, "'activation_function' of it is"),
    ("phi3", {"attention_bias": True}, "'attention_bias' of it is true; supported: false"),
    ("phi3", {"interpolate_factor": 2}, "'interpolate_factor' of it is 2"),
    ("phi3", {"rope_scaling": {"type": "su"}}, "'type' of 'rope_scaling' of it is \"su\""),
    ("phi3", {"rope_scaling": {"rope_type": "yarn"}}, "'rope_type' of 'rope_scaling' of it is \"yarn\""),
    ("phi3_longrope", {"partial_rotary_factor": 0.5}, "'short_factor' .* a list of 4 positive numbers"),
    ("gpt_neox", {"num_attention_heads": 3}, "'num_attention_heads' of it is 3; supported: a divisor"),
    ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"'rotary_pct' of it is 0\.25, and"),
    ("gpt_neox", {"rope_parameters": {"rope_theta": 5}}, "'rotary_emb_base' of it is 10000, and"),
    ("gpt_neox", {"rotary_pct": 0.2}, "an even number"),
    ("gpt_neox", {"hidden_act": "relu"}, "'hidden_act' of it is \"relu\""),
    ("olmo2", {"clip_qkv": 8.0}, "'clip_qkv', which may change the mathematics"),
    ("granite", {"num_local_experts": 4}, "'num_local_experts', which may change the mathematics"),
    ("smollm3", {"no_rope_layers": [1, 0]}, r"'no_rope_layers' of it is \[1, 0\]; supported: a list of 4"),
    ("smollm3", {"layer_types": ["sliding_attention"] * 4}, "where there is no sliding window"),
]


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def config(name):
    return read_values(name)


KNOWN = [
    # What models on the hub say besides: SmolLM2, GPT-2 XL, Llama 1, Qwen 2.5.
    ("llama2", {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}),
    ("llama2", {"max_sequence_length": 2048, "_name_or_path": "somewhere", "unsloth_version": "2025.1"}),
    ("gpt2", {"n_special": 0, "predict_special_tokens": True, "output_past": True, "_num_labels": 1}),
    ("qwen2", {"use_mrope": False}),
]


@pytest.mark.parametrize(("name", "more"), KNOWN, indirect=["name"])
def test_keys_that_never_matter_are_left_alone(config, more):
    assert read_config({**config, **more}, where="it") == read_config(config, where="it")


def test_an_unknown_key_is_refused_by_name(config):
    with pytest.raises(CheckpointError, match="'stretch', which may change the mathematics"):
        read_config({**config, "stretch": 2}, where="it")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_ROTARY], indirect=True)
def test_an_unknown_rotary_key_is_refused_by_name(config):
    settings = {**(config.get("rope_scaling") or {"rope_type": "default"}), "stretch": 2}
    with pytest.raises(CheckpointError, match="'stretch', which may change the mathematics"):
        read_config({**config, "rope_scaling": settings}, where="it")


def test_no_key_is_ignored(name, config):
    """Whatever is put in place of a known value is refused, or makes another decoder."""
    known = read_config(config, where="it")
    ignored = {key for key, configs in flipped(config).items() if accepted(configs) == {known}}
    assert {key for key in ignored if key.split(".")[0] not in HARMLESS} == UNUSED.get(name, set())


def test_a_configuration_reads_the_same_as_transformers_5_writes_it(name, config):
    assert read_config(read_values(name, "config_as_saved.json"), where="it") == read_config(config, where="it")


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED, indirect=["name"])
def test_a_value_that_is_not_supported_is_refused_by_name(config, changes, message):
    with pytest.raises(CheckpointError, match=message):
        read_config({**config, **changes}, where="it")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("llama2", "model.layers.1.mlp.down_proj.weight"),
        ("qwen2", "model.layers.1.self_attn.k_proj.bias"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight"),
        ("gemma2", "model.layers.1.post_feedforward_layernorm.weight"),
        ("gpt2", "transformer.wpe.weight"),
        ("gpt2_base", "h.1.attn.c_attn.weight"),
        ("phi3", "model.layers.1.self_attn.qkv_proj.weight"),
        ("phi3", "model.layers.0.mlp.gate_up_proj.weight"),
        ("gpt_neox", "gpt_neox.layers.1.attention.query_key_value.bias"),
        ("olmo2", "model.layers.1.post_feedforward_layernorm.weight"),
    ],
    indirect=["name"],
)
def test_a_tensor_of_another_shape_is_named(name, config, tensor):
    shapes = SafetensorsFolder(CHECKPOINTS / name).shapes
    first, *rest = shapes[tensor]
    with pytest.raises(CheckpointError, match=rf"'{tensor}' of it has shape \[{first + 1}"):
        read_sources(read_config(config, where="it"), {**shapes, tensor: (first + 1, *rest)}, where="it")


@pytest.mark.parametrize("head", ["lm_head.weight", "score.weight", "score.bias", "classifier.weight"])
def test_a_head_is_not_read(head):
    shapes = SafetensorsFolder(CHECKPOINTS / "llama2").shapes
    config = read_config(read_values("llama2"), where="it")
    bare = {name: shape for name, shape in shapes.items() if name != "lm_head.weight"}
    sources = read_sources(config, {**bare, head: (1, 32)}, where="it")
    assert {name: source.name for name, source in sources.items()} == {
        name: source.name for name, source in read_sources(config, bare, where="it").items()
    }


def accepted(configs):
    """The decoders that these configurations describe, apart from those that are refused."""
    decoders = set()
    for config in configs:
        with contextlib.suppress(CheckpointError):
            decoders.add(read_config(config, where="it"))
    return decoders


def flipped(config):
    """For each key, and each key inside it, the configuration with other values in its place."""
    found = {key: [{**config, key: other} for other in others(value)] for key, value in config.items()}
    for key, value in config.items():
        if isinstance(value, dict):
            inside = flipped(value)
            found |= {f"{key}.{inner}": [{**config, key: v} for v in inside[inner]] for inner in inside}
    return found


def others(value):
    """Values of the same kind and of another one."""
    if isinstance(value, bool):
        return [not value, int(not value)]
    if isinstance(value, int | float):
        return [value + 1, value * 2, value / 2, str(value)]
    if isinstance(value, str):
        return [f"{value}_x", "silu", "gelu", 7]
    if isinstance(value, list):
        first = [[other, *value[1:]] for other in others(value[0])]
        return first + [[*value[:-1], other] for other in others(value[-1])]
    return [3, "other", {"other": 1}]
