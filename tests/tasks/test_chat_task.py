"""task=chat through a pipe: turns, commands, history, a full context, Ctrl-C."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from task_fakes import FakeEngine, context_of, spell, text_of

from engine.errors import UserError
from engine.runs import OUTPUTS, WORKLOAD, read_lines
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, run_task
from engine.tasks.chat import Chat
from engine.tasks.history import History


def chat(tmp_path: Path, engine: FakeEngine, typed: str, *overrides: str, **options: object):  # type: ignore[no-untyped-def]
    context = context_of(tmp_path, engine, *overrides, stdin=typed)
    code = run_task(Chat(Chat.Config(**options)), context, "text")  # type: ignore[arg-type]
    return code, context, read_lines(context.folder().path / OUTPUTS)


def prompts_of(engine: FakeEngine) -> list[str]:
    """The text of every prompt the engine was given."""
    asked: list[str] = []
    add = engine.add

    def record(prompt, params=None, *, listener=False):  # type: ignore[no-untyped-def]
        asked.append(bytes(i for i in prompt if i < 256).decode())
        return add(prompt, params, listener=listener)

    engine.add = record  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("ending", ["/quit\nnever\n", "/exit\n", "", "/quit"])
def test_each_line_is_answered_with_the_history(tmp_path: Path, ending: str) -> None:
    engine = FakeEngine(spell("sure"))
    asked = prompts_of(engine)
    code, context, rows = chat(tmp_path, engine, "one\n\ntwo\n" + ending)
    assert code == EXIT_OK
    assert asked[1] == "user: one\nassistant: sure\nuser: two\nassistant: "
    assert [(r["turn"], r["prompt"]) for r in rows] == [(0, "one"), (1, "two")]
    assert text_of(context.stdout).splitlines() == ["sure", "sure", str(context.folder().path)]


def test_reset_forgets(tmp_path: Path) -> None:
    engine = FakeEngine(spell("sure"))
    asked = prompts_of(engine)
    _, context, _ = chat(tmp_path, engine, "one\n/reset\ntwo\n/help\n", system="be brief")
    assert asked[1] == "system: be brief\nuser: two\nassistant: "
    assert "/reset" in text_of(context.stderr)


def test_a_prompt_override_is_the_first_turn(tmp_path: Path) -> None:
    engine = FakeEngine(spell("sure"))
    asked = prompts_of(engine)
    chat(tmp_path, engine, "two\n", "prompt=one")
    assert [text.count("user: ") for text in asked] == [1, 2]


def test_oldest_turns_leave_with_a_notice(tmp_path: Path) -> None:
    engine = FakeEngine(spell("sure"), max_context=120)
    asked = prompts_of(engine)
    _, context, rows = chat(
        tmp_path, engine, "first question\nsecond question\nthird question\n", "sampling.max_tokens=20"
    )
    assert len(rows) == 3
    assert "first" not in asked[2]
    assert "second" in asked[2]
    assert "oldest 1 turn" in text_of(context.stderr)


def test_a_message_that_cannot_fit_is_refused_and_the_chat_goes_on(tmp_path: Path) -> None:
    engine = FakeEngine(spell("sure"), max_context=120)
    _, context, rows = chat(tmp_path, engine, "x" * 200 + "\nshort\n")
    assert [r["prompt"] for r in rows] == ["short"]
    assert "does not fit" in text_of(context.stderr)


def test_ctrl_c_stops_the_answer_and_not_the_chat(tmp_path: Path) -> None:
    engine = FakeEngine(spell("a long answer"))
    engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 3 else None
    asked = prompts_of(engine)
    code, _, rows = chat(tmp_path, engine, "one\ntwo\n")
    assert code == EXIT_OK
    assert [r["completions"][0]["text"] for r in rows] == ["a l", "a long answer"]
    assert rows[0]["completions"][0]["finish_reason"] == "cancelled"
    assert asked[1] == "user: one\nassistant: a l\nuser: two\nassistant: "


def test_second_ctrl_c_ends_the_chat_with_what_was_said(tmp_path: Path) -> None:
    engine = FakeEngine(spell("sure"))
    engine.on_step = lambda step: [os.kill(os.getpid(), signal.SIGINT) for _ in (1, 2)] if step == 7 else None
    code, context, rows = chat(tmp_path, engine, "one\ntwo\nthree\n")
    assert code == EXIT_INTERRUPTED
    assert [r["prompt"] for r in rows] == ["one"]
    result = json.loads((context.folder().path / "result.json").read_text())
    assert (result["turns"], result["interrupted"]) == (1, True)
    assert engine.closed


def test_what_was_typed_is_saved_for_a_replay(tmp_path: Path) -> None:
    _, context, _ = chat(tmp_path, FakeEngine(spell("x")), "a\n/reset\nb\n")
    saved = read_lines(context.folder().path / WORKLOAD)
    assert [row["prompt"] for row in saved] == ["a", "/reset", "b"]


@pytest.mark.parametrize(
    ("override", "word"), [("sampling.n=2", "sampling.n"), ("prompt=-", "standard input")]
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, override: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        chat(tmp_path, FakeEngine(), "a\n", override)


def test_an_empty_pipe_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    engine = FakeEngine()
    context = replace(
        context_of(tmp_path, engine, stdin=""), make_engine=lambda config: pytest.fail("loaded")
    )
    with pytest.raises(UserError, match="standard input, and that is empty or closed"):
        run_task(Chat(Chat.Config()), context, "text")


def test_an_empty_pipe_after_a_prompt_is_the_end_of_a_conversation_of_one_turn(tmp_path: Path) -> None:
    code, _, rows = chat(tmp_path, FakeEngine(spell("sure")), "", "prompt=one")
    assert (code, [row["prompt"] for row in rows]) == (EXIT_OK, ["one"])


def test_json_keeps_stdout_for_the_object(tmp_path: Path) -> None:
    context = context_of(tmp_path, FakeEngine(spell("x")), stdin="a\n")
    run_task(Chat(Chat.Config(format="json")), context, "json")
    assert json.loads(text_of(context.stdout))["turns"] == 1


def test_history_never_exceeds_its_limit() -> None:
    def encode(messages):  # type: ignore[no-untyped-def]
        return [0] * sum(len(m["content"]) for m in messages)

    history = History(encode, max_context=100, max_tokens=30, system="s" * 10)
    for turn in range(20):
        ids, dropped = history.ask("q" * 15)
        assert ids is not None
        assert len(ids) <= 70
        assert dropped == (1 if turn >= 2 else 0)
        history.answered("a" * 15)
    assert history.ask("q" * 61) == (None, 0)
    ids, _ = history.ask("q" * 60)
    assert ids is not None
    assert len(ids) == 70
