"""A chat template is a program that came with a checkpoint: it gives transformers' text, and can do no harm."""

import resource
import time
from dataclasses import replace
from pathlib import Path

import pytest

from resources.checkpoint import chat_template
from resources.checkpoint.chat_template import ChatTemplate
from resources.checkpoint.policy import TokenizerPolicy
from resources.checkpoint.tokenizer_folder import read_folder_vocabulary
from resources.errors import CheckpointError, ConfigurationError
from resources.records import Message

QWEN = Path(__file__).parents[1] / "fixtures" / "tokenizers" / "qwen"
HELLO = (Message("user", "hello"),)


@pytest.fixture(scope="module")
def vocabulary():
    return read_folder_vocabulary(QWEN)


@pytest.fixture
def template(vocabulary):
    def make(text, **policy):
        return ChatTemplate(replace(vocabulary, chat_template=text), TokenizerPolicy(**{"chat": "turns", **policy}))

    return make


@pytest.mark.parametrize(("text", "expected"), [
    ("{% for m in messages %}\n    {% if m.role == 'user' %}\n[{{ m.content }}]\n    {% endif %}\n{% endfor %}",
     "[hello]\n"),
    ("{{ messages | tojson }}", '[{"role": "user", "content": "hello"}]'),
    ("{{ {'a': '<é>'} | tojson(indent=2) }}", '{\n  "a": "<é>"\n}'),
    ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hello!"),
    ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
    ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
    ("{% set d = dict(a=1) %}{{ d.a }}{{ dict.fromkeys(['b'], 2).b }}{{ namespace(self=3).self }}", "123"),
    ("{{ eos_token }}{{ bos_token is defined }}{{ tools is none }}", "<|im_end|>FalseTrue"),
    ("{{ messages[0]['content'].strip() | upper }}{{ add_generation_prompt }}", "HELLOFalse"),
])  # fmt: skip
def test_a_template_has_what_transformers_gives_it(template, text, expected):
    assert template(text).render(HELLO) == expected


@pytest.mark.parametrize("text", [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ (10 ** 9) ** (10 ** 7) }}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ 'a'.ljust(10 ** 10) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ range(10 ** 9) | list }}",
    "{% for i in range(99999) %}{{ 'a' * 100000 }}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}",
], ids=range(9))  # fmt: skip
def test_a_template_without_end_or_measure_is_refused_soon_and_harms_nothing(template, text, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="chat template cannot be used"):
        template(text)
    assert time.monotonic() - started < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert template("{{ messages[0].content }}").render(HELLO) == "hello"


@pytest.mark.parametrize("text", [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{% set ns = namespace(__class__=1) %}",
    "{% set ns = namespace() %}{% set ns._name = 1 %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ raise_exception('not so') }}",
    "{{ undefined.attribute }}",
])  # fmt: skip
def test_what_the_sandbox_keeps_back_or_the_template_refuses_is_said_of_the_probe(template, text):
    found = template(text).render(HELLO)
    assert found.reason == "chat-template-error"
    assert found.detail


@pytest.mark.parametrize("text", ["{{ ''.format.__globals__ }}", "{{ '{0.__class__}'.format(messages) }}"])
def test_an_attribute_that_the_sandbox_keeps_back_is_nothing(template, text):
    assert template(text).render(HELLO) == ""


@pytest.mark.parametrize(("text", "said"), [
    ("{{ messages | map(attribute='content') }}", "it writes where an object lies (<generator object"),
    ("{{ 'a' ~ cycler(1) }}", "it writes where an object lies (<jinja2.utils.Cycler object at 0x"),
    ("{{ '\\ud800' }}", "UnicodeEncodeError"),
])  # fmt: skip
def test_a_text_that_is_another_each_time_or_has_no_bytes_is_refused(template, text, said):
    answer = template(text).render((Message("user", "an <object object at 0x7f00>"),))
    assert answer.reason == "chat-template-error" and said in answer.detail


def test_a_variable_may_be_what_transformers_has_a_parameter_for(template):
    made = template("{{ tools[0].name }}{{ documents is none }}", chat_variables='{"tools": [{"name": "look"}]}')
    assert made.render(HELLO) == "lookTrue"


def test_a_message_may_quote_where_an_object_lies(template):
    quoted = "<object object at 0x7f00>"
    assert template("{{ messages[0].content }}").render((Message("user", quoted),)) == quoted


def test_a_set_is_written_in_the_same_order_by_every_worker(template):
    text = "{{ (dict.fromkeys('abcdefgh').keys() - {}.keys()) | list }}"
    assert len({template(text).render(HELLO) for _ in range(4)}) == 1


def test_the_time_of_a_template_is_a_second(template):
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="it took more than 1 s"):
        template("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    assert 1 <= time.monotonic() - started < 20


@pytest.mark.parametrize(("text", "sentence"), [
    ("{% for", "TemplateSyntaxError"),
    ("{{ [1, 2] | random }}", "No filter named 'random'"),
    ("{{ strftime_now('%d') }}", "set chat_date to a day"),
])  # fmt: skip
def test_a_template_that_cannot_be_compiled_or_changes_by_itself_is_refused(template, text, sentence):
    with pytest.raises((CheckpointError, ConfigurationError), match=sentence):
        template(text)


def test_today_is_the_day_that_the_policy_names(template):
    text = "{{ strftime_now('%d %B %Y') }}"
    assert template(text, chat_date="2024-07-26").render(HELLO) == "26 July 2024"


def test_a_chat_that_takes_too_long_is_refused_and_the_next_is_rendered(template, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)
    monkeypatch.setattr(chat_template, "MOST_KILLS", 3)
    text = (
        "{% if messages[0].content == 'long' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
        "{% endfor %}{% endif %}{{ messages[0].content }}"
    )
    slow = template(text)
    for _ in range(chat_template.MOST_KILLS - 1):
        assert slow.render((Message("user", "long"),)).reason == "chat-template-limit"
        assert slow.render(HELLO) == "hello"
    with pytest.raises(CheckpointError, match="was stopped 3 times"):
        slow.render((Message("user", "long"),))


def test_a_large_chat_is_rendered_whole(template):
    text = "é😀\x00\u2028" * 1_000_000
    assert template("{{ messages[0].content }}").render((Message("user", text),)) == text


def test_a_worker_does_not_outlive_its_template(template):
    made = template("{{ messages[0].content }}")
    worker = made._worker
    del made
    assert worker.wait(timeout=10) is not None


def test_the_template_and_its_policy_are_part_of_the_identity(vocabulary):
    def identity(template, **policy):
        record = TokenizerPolicy(**policy).record()
        return replace(vocabulary, chat_template=template).identity(record)

    turns = identity("a", chat="turns")
    assert len({turns, identity("b", chat="turns"), identity("a", chat="generation_prompt"), identity("a"),
                identity("a", chat="turns", chat_date="2024-07-26")}) == 5  # fmt: skip
    assert identity("a") == identity("b")
