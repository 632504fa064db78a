"""Chat templates: a list of messages becomes the prompt text that a model was trained on.

Templates are Jinja programs that come with the weights, so they run sandboxed. Knows nothing of token ids.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import UserError

Message = Mapping[str, Any]

# Noncharacters of Unicode: no text has a use for them, so one can mark a place in a message for a while.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class ChatTemplate:
    """One compiled template; `named` are the special-token strings it may ask for (bos_token, ...)."""

    def __init__(self, source: str | None, named: Mapping[str, str]) -> None:
        self._source = source
        self._named = dict(named)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt text. UserError: no template, a malformed message, or what the template refuses."""
        check_messages(messages)
        template = self._compiled
        try:
            return template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._named,
            )
        except TemplateError as error:
            raise UserError(f"The model's chat template refuses this conversation: {error}") from error
        except Exception as error:  # a template is a foreign program and may fail in any way
            raise UserError(
                f"The model's chat template failed on this conversation ({type(error).__name__}: {error}); "
                "give a plain prompt instead of messages, or a model with a working template."
            ) from error

    @cached_property
    def _compiled(self) -> Template:
        if not self._source:
            raise UserError(
                "The model has no chat template, so messages cannot become a prompt: "
                "give a plain prompt instead, or a model whose tokenizer has one."
            )
        try:
            return _environment().from_string(self._source)
        except TemplateError as error:
            raise UserError(
                f"The model's chat template is not valid Jinja ({error}): give a plain prompt instead."
            ) from error


def check_messages(messages: Sequence[Message]) -> None:
    """UserError unless messages is a non-empty list of {role: text, content: text}."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise UserError(
            f"messages must be a list of {{'role': ..., 'content': ...}}, not {type(messages).__name__}."
        )
    if not messages:
        raise UserError("messages is empty: a conversation needs at least one message.")
    for index, message in enumerate(messages):
        _check_message(index, message)


def _check_message(index: int, message: Message) -> None:
    if not isinstance(message, Mapping):
        raise UserError(
            f"messages[{index}] must be {{'role': ..., 'content': ...}}, not {type(message).__name__}."
        )
    for key in ("role", "content"):
        if key not in message:
            raise UserError(f"messages[{index}] has no {key!r}: each message needs 'role' and 'content'.")
    if not isinstance(message["role"], str) or not message["role"]:
        raise UserError(f"messages[{index}]['role'] must be a non-empty text, not {message['role']!r}.")
    if not isinstance(message["content"], str):
        raise UserError(
            f"messages[{index}]['content'] must be text, not {type(message['content']).__name__}."
        )


def shield(messages: Sequence[Message], special: re.Pattern[str]) -> tuple[list[Message], str]:
    """The messages with every spelling of a special token broken up by a mark, and the mark ("" if none was).

    Once the rendered prompt is split at the template's own special tokens, removing the mark restores it.
    """
    check_messages(messages)
    if not any(special.search(text) for message in messages for text in _texts(message)):
        return list(messages), ""
    used = {char for message in messages for text in _texts(message) for char in text}
    mark = next((char for char in _MARKS if char not in used), None)
    if mark is None:
        raise UserError(
            "The messages hold all 32 noncharacters U+FDD0 to U+FDEF: remove them, they are not text."
        )

    def break_up(value: object) -> object:
        return special.sub(lambda match: mark.join(match.group()), value) if isinstance(value, str) else value

    return [{key: break_up(value) for key, value in message.items()} for message in messages], mark


def _texts(message: Message) -> list[str]:
    return [value for value in message.values() if isinstance(value, str)]


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; here it only opens a scope."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
