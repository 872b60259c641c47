"""Rotary settings become frequencies, or are refused; test_parity compares what they do with transformers."""

import numpy as np
import pytest

from resources.checkpoint.architectures.reader import ConfigReader
from resources.checkpoint.architectures.rotary import read_rotary, rotary_settings
from resources.errors import CheckpointError

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def read(values, **how):
    reader = ConfigReader(values, "it")
    defaults = {"head_dim": 8, "theta": 10000.0, "max_positions": 4096}
    rotary = read_rotary(rotary_settings(reader), **{**defaults, **how})
    reader.finish()
    return rotary


def test_without_settings_the_frequencies_fall_from_one_towards_one_over_the_base():
    assert read({}).inverse_frequencies == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-15)
    assert read({}, fraction=0.5).inverse_frequencies == pytest.approx([1, 0.01], rel=1e-15)


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "linear", "factor": 4.0},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "linear", "type": "linear", "factor": 4},
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_old_and_new_spellings_say_the_same(key, settings):
    expected = np.array(read({}).inverse_frequencies) / 4
    assert read({key: settings}).inverse_frequencies == pytest.approx(expected, rel=1e-15)


def test_dynamic_scaling_changes_nothing_up_to_the_configured_limit():
    assert read({"rope_scaling": {"type": "dynamic", "factor": 2.0}}) == read({})


def test_llama3_scaling_leaves_fast_dimensions_and_slows_the_slow_ones():
    # Of 4096 positions the four dimensions turn 652, 65, 6.5 and 0.65 times.
    scaled = np.array(read({"rope_scaling": LLAMA3}).inverse_frequencies)
    ratios = scaled / np.array(read({}).inverse_frequencies)
    assert ratios == pytest.approx([1, 1, 1, 1 / 8])
    between = np.array(read({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1570}}).inverse_frequencies)
    assert 1 / 8 < between[2] / 0.01 < 1


def test_the_length_of_training_can_stand_outside_the_settings():
    inside = {**LLAMA3, "original_max_position_embeddings": 64}
    assert read({"rope_scaling": inside}, original=1024) == read(
        {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1024}}
    )


@pytest.mark.parametrize(("values", "message"), [
    ({"rope_scaling": {"type": "mrope"}}, "the rotary kind of 'rope_scaling' of it is 'mrope'; supported: default, "),
    ({"rope_scaling": {"type": "linear"}}, "'rope_scaling' of it has no 'factor'"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "'factor' of 'rope_scaling' of it is 0"),
    ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2}}, "'type' .* supported: .yarn"),
    ({"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3}}, "'beta_fast', which may change"),
    ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}}, "sets both"),
    ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "gives no rotary frequencies"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}}, "gives no rotary frequencies"),
    ({"rope_parameters": {"partial_rotary_factor": 0.7}}, r"turns 5\.6 of a head's 8 dimensions"),
    ({"rope_parameters": {"partial_rotary_factor": 1.5}}, r"turns 12\.0 of a head's 8 dimensions"),
    ({"rope_parameters": {"partial_rotary_factor": 0.4}}, r"turns 3\.2 of a head's 8 dimensions"),
    ({"rope_scaling": [1]}, "'rope_scaling' of it is .1.; supported: an object"),
    ({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}}, "a list of 4 positive"),
])  # fmt: skip
def test_settings_that_are_not_supported_are_refused(values, message):
    with pytest.raises(CheckpointError, match=message):
        read(values)
