"""task=generate on an engine without a model: what is asked, printed, saved, and left by an interruption."""

import json
import os
import signal
from pathlib import Path

import pytest
from task_fakes import FakeEngine, context_of, plain_config, spell, text_of

from engine.errors import UserError
from engine.runs import OUTPUTS, RESULT, RUN, WORKLOAD, read_lines
from engine.tasks import generate
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, run_task
from engine.tasks.generate import Generate
from engine.workloads.file import FileWorkload
from engine.workloads.rows import read_rows


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"workload.path={path}"


def test_every_prompt_is_answered_saved_and_shown(tmp_path: Path) -> None:
    engine = FakeEngine(spell("yes"))
    file = write(tmp_path / "w.jsonl", {"prompt": "one?"}, {"question": "two?"})
    context = context_of(tmp_path, engine, "workload=file", file)
    code = run_task(Generate(Generate.Config()), context, "text")
    rows = read_lines(context.folder().path / OUTPUTS)
    assert code == EXIT_OK
    assert [(r["index"], r["prompt"], r["completions"][0]["text"]) for r in rows] == [
        (0, "one?", "yes"),
        (1, "two?", "yes"),
    ]
    assert rows[0]["completions"][0]["token_ids"][:-1] == list(b"yes")
    shown = text_of(context.stdout)
    assert shown.index("── one?") < shown.index("── two?")
    assert shown.splitlines()[-1] == str(context.folder().path)
    assert "tokens/s" in shown
    assert engine.closed


def test_result_counts_ids_and_names_what_ran(tmp_path: Path) -> None:
    context = context_of(tmp_path, FakeEngine(), "prompt=hi", "sampling.max_tokens=7")
    run_task(Generate(Generate.Config()), context, "text")
    path = context.folder().path
    result = json.loads((path / RESULT).read_text())
    facts = json.loads((path / RUN).read_text())
    assert (result["task"], result["output_tokens"], result["seed"]) == ("generate", 7, 5)
    assert result["finish_reasons"] == {"length": 1}
    assert result["metrics"]["emitted_tokens"] == 7
    assert (facts["seed"], facts["model_files"], facts["device"]) == (5, {"weights": "abc"}, "cpu")


@pytest.mark.parametrize("answer", ["two\nlines", "ends itself\n", "日本 🌶", ""])
def test_one_prompt_streams_exactly_its_text(tmp_path: Path, answer: str) -> None:
    context = context_of(tmp_path, FakeEngine(spell(answer), seed=1), "prompt=What is up?")
    run_task(Generate(Generate.Config()), context, "text")
    body, _, last = text_of(context.stdout).removesuffix("\n").rpartition("\n")
    assert last == str(context.folder().path)
    if answer.isascii():
        assert body == answer.removesuffix("\n")


def test_streaming_is_live(tmp_path: Path) -> None:
    engine = FakeEngine(spell("abc"))
    context = context_of(tmp_path, engine, "prompt=x")
    seen = []
    engine.on_step = lambda step: seen.append(text_of(context.stdout))
    run_task(Generate(Generate.Config()), context, "text")
    assert seen == ["", "a", "ab", "abc"]


def test_standard_input_is_the_prompt(tmp_path: Path) -> None:
    context = context_of(tmp_path, FakeEngine(spell("ok")), "prompt=-", stdin="a\nb\n")
    run_task(Generate(Generate.Config()), context, "text")
    assert read_lines(context.folder().path / OUTPUTS)[0]["prompt"] == "a\nb"


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    context = context_of(tmp_path, FakeEngine(spell("text")), "prompt=x")
    run_task(Generate(Generate.Config(format="json")), context, "json")
    document = json.loads(text_of(context.stdout))
    assert document["run"] == str(context.folder().path)
    assert document["output_tokens"] == 5


@pytest.mark.parametrize("raw", [False, True])
def test_chat_template_is_the_default(tmp_path: Path, raw: bool) -> None:
    engine = FakeEngine()
    context = context_of(tmp_path, engine, "prompt=hi", "sampling.max_tokens=1")
    Generate(Generate.Config(raw=raw)).run(context)
    row = read_lines(context.folder().path / OUTPUTS)[0]
    expected = (
        engine.tokenizer.encode_prompt("hi")
        if raw
        else engine.tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    )
    assert row["prompt_tokens"] == len(expected)
    assert expected.count(engine.tokenizer.bos_id) == 1


def test_conversations_carry_their_history(tmp_path: Path) -> None:
    prompts = []

    def script(ids):  # type: ignore[no-untyped-def]
        prompts.append(bytes(i for i in ids if i < 256).decode())
        return spell("ok")(ids)

    file = write(tmp_path / "w.jsonl", {"turns": ["first", "second"]}, {"prompt": "alone"})
    context = context_of(tmp_path, FakeEngine(script), "workload=file", file)
    Generate(Generate.Config()).run(context)
    rows = read_lines(context.folder().path / OUTPUTS)
    assert sorted((r["index"], r["turn"]) for r in rows) == [(0, 0), (0, 1), (1, 0)]
    assert "user: first\nassistant: ok\nuser: second\nassistant: " in prompts


def test_a_full_conversation_ends_with_a_word(tmp_path: Path) -> None:
    file = write(tmp_path / "w.jsonl", {"turns": ["a" * 30, "b" * 60, "c"]})
    context = context_of(tmp_path, FakeEngine(spell("ok"), max_context=100), "workload=file", file)
    Generate(Generate.Config()).run(context)
    assert len(read_lines(context.folder().path / OUTPUTS)) == 1
    assert "it ends here" in text_of(context.stderr)


@pytest.mark.parametrize("overrides", [["workload=file", "workload.path=/no/such"], ["prompt=-"]])
def test_bad_sources_are_found_before_the_engine_is_built(tmp_path: Path, overrides: list[str]) -> None:
    context = context_of(tmp_path, [], *overrides)
    with pytest.raises(UserError):
        Generate(Generate.Config()).run(context)


def test_a_prompt_that_cannot_fit_is_named_before_any_runs(tmp_path: Path) -> None:
    engine = FakeEngine(max_context=60)
    file = write(tmp_path / "w.jsonl", {"prompt": "short"}, {"prompt": "long " * 30})
    context = context_of(tmp_path, engine, "workload=file", file)
    with pytest.raises(UserError, match=r"prompt 2 .* 60"):
        Generate(Generate.Config()).run(context)
    assert engine.steps == 0
    assert engine.closed


def test_ctrl_c_saves_what_there_is(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 4 else None
    before = signal.getsignal(signal.SIGINT)
    context = context_of(tmp_path, engine, "workload.limit=3", "sampling.max_tokens=50")
    code = run_task(Generate(Generate.Config()), context, "text")
    path = context.folder().path
    rows = read_lines(path / OUTPUTS)
    result = json.loads((path / RESULT).read_text())
    assert code == EXIT_INTERRUPTED
    assert [len(r["completions"][0]["token_ids"]) for r in rows] == [4, 4, 4]
    assert {r["completions"][0]["finish_reason"] for r in rows} == {"cancelled"}
    assert (result["interrupted"], result["output_tokens"]) == (True, 12)
    assert signal.getsignal(signal.SIGINT) is before


def test_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.on_step = lambda step: (
        [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)] if step == 2 else None
    )
    context = context_of(tmp_path, engine, "workload.limit=1")
    code = run_task(Generate(Generate.Config()), context, "text")
    assert code == EXIT_INTERRUPTED
    assert json.loads((context.folder().path / RESULT).read_text()) == {"interrupted": True}


def test_several_samples_are_all_kept(tmp_path: Path) -> None:
    context = context_of(tmp_path, FakeEngine(), "prompt=x", "sampling.n=3", "sampling.max_tokens=5")
    Generate(Generate.Config()).run(context)
    row = read_lines(context.folder().path / OUTPUTS)[0]
    assert [c["index"] for c in row["completions"]] == [0, 1, 2]
    assert len({c["text"] for c in row["completions"]}) == 3


def test_the_folder_holds_the_prompts_themselves(tmp_path: Path) -> None:
    context = context_of(tmp_path, FakeEngine(), "sampling.max_tokens=1")
    Generate(Generate.Config()).run(context)
    saved = context.folder().path / WORKLOAD
    config = FileWorkload.Config(path=str(saved))
    assert FileWorkload(config).items(300) == read_rows(saved)
    assert len(read_rows(saved)) == 8


def test_stop_strings_from_the_command_line_are_unescaped() -> None:
    from engine.tasks.requests import sampling_params

    config = plain_config(r"sampling.stop=['a\n', 'b\\c']")
    assert "a\n" in sampling_params(config).stop


def test_a_closed_pipe_ends_the_run_and_keeps_its_part(tmp_path: Path) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    from dataclasses import replace

    engine = FakeEngine()
    context = replace(context_of(tmp_path, engine, "prompt=x", "sampling.max_tokens=90"), stdout=Gone())
    with pytest.raises(BrokenPipeError):
        run_task(Generate(Generate.Config()), context, "text")
    assert engine.steps < 5
    assert len(read_lines(context.folder().path / OUTPUTS)) == 1


@pytest.mark.parametrize(("device", "printed"), [("cpu", False), ("cuda:0", True)])
def test_the_memory_plan_is_recorded_and_printed_where_a_device_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, printed: bool
) -> None:
    engine = FakeEngine()
    engine.device = device
    context = context_of(tmp_path, engine)
    monkeypatch.setattr(generate, "device_facts", lambda name: {"device": name})
    generate.record_engine(context, engine)
    facts = json.loads((context.folder().path / RUN).read_text())
    assert facts["memory"] == {
        "total_bytes": 3 << 20,
        "items": [{"name": "weights", "bytes": 3 << 20, "how": "none"}],
    }
    assert ("memory: weights 3.0 MiB" in text_of(context.stderr)) is printed
