"""Chat templates against transformers' rendering; what is refused, and that a template cannot reach out."""

from typing import Any

import chat_templates as samples
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import UserError
from engine.text.base import Tokenizer, TokenizerFacts
from engine.text.bytes_tokenizer import BOS, EOS, ByteTokenizer
from engine.text.chat import ChatTemplate, check_messages

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}


def rendered_by_transformers(source: str, messages: list[dict[str, str]], generation: bool) -> str:
    rendered, _ = render_jinja_template(
        [messages], chat_template=source, add_generation_prompt=generation, **NAMED
    )
    return rendered[0]


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("conversation", samples.CONVERSATIONS)
@pytest.mark.parametrize("name", samples.ALL)
def test_rendering_equals_transformers(name: str, conversation: str, generation: bool) -> None:
    source, messages = samples.ALL[name], samples.CONVERSATIONS[conversation]
    if name == "mistral" and conversation == "system":
        with pytest.raises(UserError, match="roles must alternate user/assistant"):
            ChatTemplate(source, NAMED).render(messages, generation)
        return
    expected = rendered_by_transformers(source, messages, generation)
    assert ChatTemplate(source, NAMED).render(messages, generation) == expected


@pytest.mark.model
@pytest.mark.parametrize("conversation", samples.CONVERSATIONS)
def test_embedded_template_equals_transformers(smollm2: Tokenizer, conversation: str) -> None:
    messages = samples.CONVERSATIONS[conversation]
    expected = rendered_by_transformers(str(smollm2.chat_template), messages, True)
    assert smollm2.render_chat(messages) == expected
    assert smollm2.encode_chat(messages) == smollm2.encode(expected, special=True)


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        ("hello", "list of"),
        ({"role": "user", "content": "x"}, "list of"),
        (None, "NoneType"),
        ([], "empty"),
        (["hello"], r"messages\[0\] must be"),
        ([{"role": "user"}], r"messages\[0\] has no 'content'"),
        ([*samples.ONE, {"content": "x"}], r"messages\[1\] has no 'role'"),
        ([{"role": "", "content": "x"}], "non-empty"),
        ([{"role": 3, "content": "x"}], "non-empty"),
        ([{"role": "user", "content": ["x"]}], "must be text, not list"),
        ([{"role": "user", "content": None}], "must be text, not NoneType"),
    ],
)
def test_malformed_messages_are_named(messages: Any, names: str) -> None:
    with pytest.raises(UserError, match=names):
        check_messages(messages)
    with pytest.raises(UserError, match=names):
        ByteTokenizer().encode_chat(messages)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (None, "no chat template"),
        ("", "no chat template"),
        ("{% for %}", "not valid Jinja"),
        ("{{ raise_exception('only text') }}", "refuses this conversation: only text"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safe"),
    ],
)
def test_template_trouble_is_one_sentence(source: str | None, names: str) -> None:
    with pytest.raises(UserError, match=names) as caught:
        ChatTemplate(source, NAMED).render(samples.ONE)
    assert "\n" not in str(caught.value)


def test_templates_do_not_change_the_messages() -> None:
    messages = [{"role": "user", "content": "x"}]
    ChatTemplate("{% for m in messages %}{% set m = 1 %}{{ m }}{% endfor %}", NAMED).render(messages)
    assert messages == [{"role": "user", "content": "x"}]


class Renamed(ByteTokenizer):
    """The byte tokenizer under another template and another wish for a BOS."""

    def __init__(self, template: str, add_bos: bool) -> None:
        super().__init__()
        named = self.facts.named
        self.facts = TokenizerFacts((EOS,), BOS, add_bos, template, named)
        self.chat_template, self.add_bos = template, add_bos


@pytest.mark.parametrize(
    ("template", "add_bos", "count"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", True, 1),
        ("{{ messages[0].content }}", True, 1),
        ("{{ bos_token }}{{ messages[0].content }}", False, 1),
        ("{{ messages[0].content }}", False, 0),
    ],
)
def test_exactly_one_bos(template: str, add_bos: bool, count: int) -> None:
    tokenizer = Renamed(template, add_bos)
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi <bos>"}])
    assert ids.count(BOS) == count
    assert ids == [BOS] * count + list(b"hi <bos>")
    assert tokenizer.encode_prompt("hi").count(BOS) == add_bos


@pytest.mark.parametrize(
    "content", ["<eos>", "a<bos>b<eos>", "<<eos>>", "\ufdd0<eos>\ufdd1", "<eos", "plain"]
)
@pytest.mark.parametrize("role", ["user", "us<eos>er"])
def test_control_tokens_come_from_the_template_alone(role: str, content: str) -> None:
    tokenizer = Renamed("{% for m in messages %}{{ m.role }}:{{ m.content }}<eos>{% endfor %}", False)
    ids = tokenizer.encode_chat([{"role": role, "content": content}] * 2)
    assert ids == [*f"{role}:{content}".encode(), EOS] * 2


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(UserError, match="surrogate"):
        ByteTokenizer().encode("a\ud800")
