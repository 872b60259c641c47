"""A policy that makes no sense is refused, and one that does is recorded the same for ever."""

import json

import pytest

from resources.checkpoint.policy import TokenizerPolicy
from resources.errors import ConfigurationError


@pytest.mark.parametrize(("policy", "sentence"), [
    ({"over_long": "cut"}, "over_long is 'cut'; expected one of"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": 2, "add_bos": True, "add_eos": True}, "leaves no room"),
    ({"chat": "always"}, "chat is 'always'; expected one of"),
    ({"chat_date": "2024-07-26"}, "chat is 'none'; set chat too"),
    ({"chat_variables": '{"a": 1}'}, "chat is 'none'; set chat too"),
    ({"chat": "turns", "chat_date": "26 July"}, "expected a day such as"),
    ({"chat": "turns", "chat_variables": "{"}, "which is no JSON"),
    ({"chat": "turns", "chat_variables": '{"add_generation_prompt": true}'}, "sets 'add_generation_prompt', which"),
    ({"chat": "turns", "chat_variables": '{"messages": []}'}, "sets 'messages', which"),
    ({"chat": "turns", "chat_variables": "[]"}, "expected a JSON object"),
    ({"chat": "turns", "over_long": "truncate_right"}, "cut off the end of the last turn"),
    ({"chat": "turns", "max_tokens": 1}, "leaves no room"),
])  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(policy, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        TokenizerPolicy(**policy)


def test_a_policy_without_a_chat_is_recorded_as_before_there_were_chats():
    assert json.dumps(TokenizerPolicy(add_bos=True).record()) == (
        '{"add_bos": true, "add_eos": null, "parse_special": true, "over_long": "refuse", "max_tokens": 2048}'
    )
