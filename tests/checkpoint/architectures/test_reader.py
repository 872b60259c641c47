"""A configuration's keys are taken with a type, and what nobody took is refused."""

import math

import pytest

from resources.checkpoint.architectures.reader import NEUTRAL, ConfigReader
from resources.errors import CheckpointError


def reader(**values):
    return ConfigReader(values, "it")


@pytest.mark.parametrize(("values", "take", "expected"), [
    ({"n": 3}, lambda r: r.integer("n"), 3),
    ({}, lambda r: r.integer("n", 4), 4),
    ({"n": None}, lambda r: r.integer("n", 4), 4),
    ({"n": 0}, lambda r: r.integer("n", least=0), 0),
    ({"n": 3}, lambda r: r.number("n"), 3.0),
    ({"n": None}, lambda r: r.optional_integer("n", 4), None),
    ({}, lambda r: r.optional_integer("n", 4), 4),
    ({}, lambda r: r.optional_number("n", None), None),
    ({"n": 2}, lambda r: r.optional_number("n", None), 2.0),
    ({"n": False}, lambda r: r.flag("n", True), False),
    ({"n": "a"}, lambda r: r.text("n"), "a"),
    ({"n": [1, 2.5]}, lambda r: r.numbers("n", 2), (1.0, 2.5)),
    ({"n": ["a", "b", "a"]}, lambda r: r.choices("n", 2, ("a", "b")), ("a", "b")),
    ({}, lambda r: r.choices("n", 2, ("a", "b")), None),
    ({"n": {"m": 1}}, lambda r: r.nested("n").integer("m"), 1),
    ({"n": None}, lambda r: r.nested("n").values, {}),
    ({"n": 1.0}, lambda r: r.only("n", 1.0), None),
    ({}, lambda r: r.only("n", 1.0), None),
])  # fmt: skip
def test_a_key_is_taken_with_its_type(values, take, expected):
    given = reader(**values)
    assert take(given) == expected
    given.finish()


@pytest.mark.parametrize(("values", "take", "message"), [
    ({}, lambda r: r.integer("n"), "it has no 'n'; expected a positive integer"),
    ({"n": None}, lambda r: r.integer("n"), "'n' of it is null; supported: a positive integer"),
    ({"n": True}, lambda r: r.integer("n"), "'n' of it is true"),
    ({"n": 2.0}, lambda r: r.integer("n"), r"'n' of it is 2\.0"),
    ({"n": 0}, lambda r: r.integer("n"), "'n' of it is 0"),
    ({"n": -1}, lambda r: r.integer("n", least=0), "'n' of it is -1; supported: an integer of at least 0"),
    ({"n": math.inf}, lambda r: r.number("n"), "'n' of it is Infinity"),
    ({"n": 10**400}, lambda r: r.number("n"), "'n' of it is 1000"),
    ({"n": [1, math.inf]}, lambda r: r.numbers("n", 2), "supported: a list of 2 positive numbers"),
    ({"n": math.nan}, lambda r: r.optional_number("n", None), "'n' of it is NaN"),
    ({"n": "1"}, lambda r: r.number("n"), "'n' of it is \"1\"; supported: a positive number"),
    ({"n": 1}, lambda r: r.flag("n"), "'n' of it is 1; supported: true or false"),
    ({"n": ["a"]}, lambda r: r.text("n"), "supported: a string"),
    ({"n": [1]}, lambda r: r.numbers("n", 2), "supported: a list of 2 positive numbers"),
    ({"n": [1, -1]}, lambda r: r.numbers("n", 2), "supported: a list of 2 positive numbers"),
    ({"n": ["a", "c"]}, lambda r: r.choices("n", 2, ("a", "b")), r"supported: a list of 2 of \['a', 'b'\]"),
    ({"n": [True, 0]}, lambda r: r.choices("n", 2, (0, 1)), r"'n' of it is \[true, 0\]"),
    ({"n": [1]}, lambda r: r.nested("n"), "supported: an object"),
    ({"n": 1}, lambda r: r.only("n", True), "'n' of it is 1; supported: true"),
    ({"n": None}, lambda r: r.only("n", False), "'n' of it is null; supported: false"),
])  # fmt: skip
def test_a_value_of_another_kind_is_refused(values, take, message):
    with pytest.raises(CheckpointError, match=message):
        take(reader(**values))


def test_every_key_that_nobody_took_is_named():
    given = reader(n=1, window=2, experts=3)
    given.integer("n")
    with pytest.raises(CheckpointError, match="it sets 'window', 'experts', which may change the mathematics"):
        given.finish()


@pytest.mark.parametrize("key", ["factor", "use_cache", "is_causal"])
def test_any_key_inside_an_object_is_named_with_its_place(key):
    given = reader(scaling={key: True})
    given.nested("scaling")
    with pytest.raises(CheckpointError, match=f"'scaling' of it sets '{key}'"):
        given.finish()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("is_encoder_decoder", True),
        ("add_cross_attention", True),
        ("cross_attention_hidden_size", 8),
        ("is_causal", False),
        ("use_bidirectional_attention", True),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"quant_method": "awq"}),
        ("compression_config", {}),
    ],
)
def test_a_key_that_is_neutral_in_one_value_alone_is_refused_in_another(key, value):
    for neutral in NEUTRAL[key]:
        reader(**{key: neutral}).finish()
    with pytest.raises(CheckpointError, match=f"'{key}' of it is"):
        reader(**{key: value}).finish()
