"""`task=train_eagle3` from the command line's config to the written draft, on the tiny model."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.engines import make
from training_parts import LAYERS, engine, texts

from engine.build import make_config, target_class
from engine.compose import compose
from engine.errors import UserError
from engine.provenance import PACKAGE_ROOT
from engine.runs import create_run
from engine.tasks.base import EXIT_INTERRUPTED, Outcome, Task, TaskContext
from engine.tasks.interrupts import StopFlag
from engine.tasks.training_files import load_text, read_openings, read_prompts, save_text, set_names
from engine.tasks.training_text import Limits, Writer
from engine.tasks.training_time import WritingTime
from engine.tasks.training_world import TrainingWorld

BASE = ("model=tiny", "model.dtype=float32", "attention=torch", "threads=1", "cache=none", "seed=4")
SMALL = (
    "cache.max_context=512",
    "scheduler.max_running=8",
    "task.prompt_tokens=24",
    "task.document_tokens=24",
    "task.answer_tokens=24",
    "task.self_prompts=0",
    "task.documents=0",
    "task.trainer.draft_vocab=300",
    "task.trainer.batch_tokens=256",
    "task.trainer.log_seconds=0",
    "task.trainer.epochs=12",
)


def task_and_context(folder: Path, *overrides: str) -> tuple[Task, TaskContext]:
    lines = ["task=train_eagle3", *BASE, *SMALL, *overrides]
    chosen = {line.partition("=")[0]: line for line in lines}  # the last one wins
    config = compose(list(chosen.values())).cfg
    context = TaskContext(
        config,
        overrides,
        create_run(folder / "run", config, overrides),
        stdout=io.StringIO(),
        stderr=io.StringIO(),
    )
    cls = target_class(config["task"]["_target_"])
    return cls(make_config(cls, config["task"], "task")), context


def run(folder: Path, *overrides: str) -> tuple[Outcome, TaskContext]:
    task, context = task_and_context(folder, *overrides)
    return task.run(context), context


def prompts(folder: Path, name: str, *lines: str) -> str:
    path = folder / name / "prompts.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"question": line}) + "\n" for line in lines))
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, TaskContext]:
    folder = tmp_path_factory.mktemp("trained")
    learn = prompts(folder, "learn", "hello", "what is this", "one two three", "go on")
    exam = prompts(folder, "exam", "never seen", "nor this")
    outcome, context = run(
        folder,
        f"task.prompts=[{learn}]",
        f"task.evaluate=[{exam}]",
        "task.evaluate_tokens=16",
        "task.trainer.compare_vocab=[100]",
        "task.target_name=Tiny",
    )
    return folder, outcome, context


def test_it_trains_measures_and_writes(trained: tuple[Path, Outcome, TaskContext]) -> None:
    _, outcome, context = trained
    result = outcome.result
    assert outcome.code == 0
    assert result["complete"] is True
    losses = [point["loss"] for point in result["curve"]]
    assert losses[-1] < losses[0]
    assert 1 <= result["sets"]["exam"]["accept_length"] <= 5
    assert set(result["by_vocab"]) == {"100", "300"}
    draft = context.folder().path / "draft"
    assert str(draft) == result["draft"]
    tensors = load_file(draft / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (300, 64)
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert (draft / "model.safetensors").stat().st_mode & 0o044 == 0o044
    said = (context.stderr.getvalue(), context.stdout.getvalue())  # type: ignore[attr-defined]
    assert "accepted" in said[0]
    assert said[1] == ""


def test_the_cards_say_where_it_comes_from(trained: tuple[Path, Outcome, TaskContext]) -> None:
    _, outcome, _ = trained
    folder = Path(outcome.result["draft"])
    card = json.loads((folder / "card.json").read_text())
    assert card["target"] == {"name": "Tiny", "hidden_size": 64, "num_layers": 3, "vocab_size": 512}
    assert card["accept_length"] == {"exam": outcome.result["sets"]["exam"]["accept_length"]}
    assert len(card["acceptance_per_position"]["exam"]) == card["chain_drafts"] == 4
    assert "learn/prompts.jsonl" in card["data"]
    assert "task.evaluate_tokens=16" in card["command"]
    text = (folder / "README.md").read_text()
    assert "# EAGLE3 draft for Tiny" in text
    assert "| exam | " in text


def test_text_of_an_earlier_run_is_used_again(
    trained: tuple[Path, Outcome, TaskContext], tmp_path: Path
) -> None:
    _, outcome, context = trained
    text = context.folder().path / "text.npz"
    again, _ = run(tmp_path, f"task.text=[{text},{text}]", "task.trainer.epochs=1")
    assert again.result["text"]["sequences"] == 2 * outcome.result["text"]["sequences"] == 8
    assert not (tmp_path / "run/text.npz").exists()
    assert not (tmp_path / "run/draft/card.json").exists(), "a card without a measurement promises nothing"


def test_an_answer_is_greedy_and_ends_with_its_stop(trained: tuple[Path, Outcome, TaskContext]) -> None:
    _, _, context = trained
    for ids, prompt in load_text(str(context.folder().path / "text.npz"), 512):
        with_answer = engine().next_token_logits(ids[:prompt])
        assert int(with_answer.argmax()) == ids[prompt]
        assert engine().tokenizer.decode(ids[:prompt]).startswith("user: ")


def test_the_model_writes_prompts_documents_and_answers_itself(tmp_path: Path) -> None:
    """At temperature 1 a random model of 512 tokens ends about every third turn within 200."""
    _, context = task_and_context(tmp_path)
    limits, until = Limits(200, 16, 16, 1.0), WritingTime.of(None)
    writer = Writer(engine(), context, StopFlag(context.stderr), limits, 3, until, pytest.fail)
    turns = writer.turns(("", "Write "), 24, "turns")
    assert turns, "none of 24 turns ended within 200 tokens"
    assert len(set(turns)) == len(turns)
    documents = writer.documents(["tell me", "and this"])
    asked = writer.about(documents, ("Summarize: {text}", "{text}?"), 2)
    assert len(asked) == 2 * len(documents)
    assert asked[0].startswith("Summarize: ")
    assert documents[0][:4] in asked[0]
    answers = writer.answers(writer.texts(asked), "answers")
    assert [a.job.key for a in answers] == list(range(len(asked)))
    assert all(0 < a.tokens <= 16 for a in answers)


def test_states_equal_the_engine_s_own(tmp_path: Path) -> None:
    """Ragged sequences in one pass: the final state gives the engine's logits, the last aux state too."""
    states = engine().target_states(LAYERS)
    chosen = [ids for ids, _ in texts()[:3]]
    final, aux = states.states(torch.tensor([i for ids in chosen for i in ids]), [len(ids) for ids in chosen])
    ends = np.cumsum([len(ids) for ids in chosen]) - 1
    for end, ids in zip(ends, chosen, strict=True):
        expected = engine().next_token_logits(ids)
        torch.testing.assert_close(states.logits(final[end : end + 1])[0], expected, rtol=1e-4, atol=1e-4)
        last = aux[end, -64:]  # the output of the last layer: the final norm makes the final state of it
        normed = last / (last.square().mean() + states.shape.rms_eps).sqrt() * states.norm
        torch.testing.assert_close(normed, final[end], rtol=1e-4, atol=1e-4)


def test_ctrl_c_in_training_leaves_a_checkpoint_to_go_on_from(
    trained: tuple[Path, Outcome, TaskContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole, context = trained
    text = context.folder().path / "text.npz"
    asked: list[bool] = []
    monkeypatch.setattr(StopFlag, "requested", property(_after(asked, 8), _ignore), raising=False)
    stopped, _ = run(tmp_path, f"task.text=[{text}]")
    assert stopped.code == EXIT_INTERRUPTED
    assert stopped.result["stage"] == "training"
    assert f"task.resume={tmp_path / 'run'}" in stopped.text
    monkeypatch.undo()
    resumed, _ = run(tmp_path / "2", f"task.text=[{text}]", f"task.resume={tmp_path / 'run'}")
    assert resumed.result["complete"] is True
    first, second = (load_file(Path(o.result["draft"]) / "model.safetensors") for o in (whole, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)


def _ignore(self: StopFlag, value: bool) -> None:
    """The flag's own constructor sets it; the property decides."""
    return None


def _after(asked: list[bool], count: int) -> Any:
    def requested(self: StopFlag) -> bool:
        asked.append(True)
        return len(asked) > count

    return requested


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "nothing to train on"),
        (["task.prompts=[nowhere.txt]"], "task.prompts: there is no file nowhere.txt"),
        (["task.text=[nowhere.npz]"], "task.text=nowhere.npz does not exist"),
        (["task.self_prompts=1", "task.resume=nowhere"], "task.resume=nowhere does not exist"),
        (["task.self_prompts=1", "task.openings=nowhere"], "task.openings: there is no file nowhere"),
        (
            ["task.self_prompts=1", "task.trainer.export_vocab=301"],
            "task.trainer.export_vocab=301 is not among",
        ),
        (
            ["task.self_prompts=1", "task.trainer.compare_vocab=[1]"],
            "task.trainer.compare_vocab=1 is not among",
        ),
        (["task.self_prompts=1", "task.trainer.draft_vocab=513"], "exceeds the target's vocabulary of 512"),
        (["task.self_prompts=1", "task.trainer.aux_layers=[2,1]"], "ascending layers between 1 and 3"),
        (["task.self_prompts=1", "task.trainer.aux_layers=[0,4]"], "ascending layers between 1 and 3"),
        (["task.self_prompts=1", "task.trainer.heads=6", "task.trainer.kv_heads=4"], "no multiple"),
        (["task.self_prompts=1", "model.layers=2"], "the target has 2 layers"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message.replace("[", r"\[").replace("]", r"\]")):
        run(tmp_path, *overrides)


def test_a_model_without_layer_states_is_refused() -> None:
    with (
        make("model=fake", "threads=1") as llm,
        pytest.raises(UserError, match="FakeModel shows no hidden states of its layers"),
    ):
        llm.target_states((1,))


def test_exam_prompts_must_not_be_trained_on(tmp_path: Path) -> None:
    learn = prompts(tmp_path, "learn", "one", "two")
    exam = prompts(tmp_path, "exam", "three", "two")
    with pytest.raises(UserError, match=r"1 prompts of .* are in task\.prompts too"):
        run(tmp_path, f"task.prompts=[{learn}]", f"task.evaluate=[{exam}]")


@pytest.mark.parametrize("shared", [" two\t ", "two\n"])
def test_spaces_make_no_other_prompt(tmp_path: Path, shared: str) -> None:
    learn = prompts(tmp_path, "learn", "one", "two")
    exam = prompts(tmp_path, "exam", "three", shared)
    with pytest.raises(UserError, match=r"1 prompts of .* are in task\.prompts too"):
        run(tmp_path, f"task.prompts=[{learn}]", f"task.evaluate=[{exam}]")


def test_exam_prompts_in_the_text_of_an_earlier_run_are_left_out_and_told(
    trained: tuple[Path, Outcome, TaskContext], tmp_path: Path
) -> None:
    text = trained[2].folder().path / "text.npz"
    exam = prompts(tmp_path, "exam", "go on", "never seen")
    outcome, context = run(
        tmp_path,
        f"task.text=[{text}]",
        f"task.evaluate=[{exam}]",
        "task.evaluate_tokens=4",
        "task.trainer.epochs=1",
    )
    assert outcome.result["text"]["sequences"] == 3
    said = context.stderr.getvalue()  # type: ignore[attr-defined]
    assert "text: 1 sequences left out: their prompts are in task.evaluate" in said


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["data/alpaca/question.jsonl", "data/gsm8k/test.jsonl"], ["alpaca", "gsm8k"]),
        (["exam.txt"], ["exam"]),
        (["sets/a.txt", "sets/b.txt"], ["sets/a", "sets/b"]),
        (["a.txt", "b.txt"], ["a", "b"]),
        (["x/sets/a.txt", "y/sets/a.txt"], ["x/sets/a.txt", "y/sets/a.txt"]),
        (["sets/a.txt", "sets/a.txt"], ["sets", "sets"]),
        ([], []),
    ],
)
def test_no_two_sets_share_a_name(paths: list[str], names: list[str]) -> None:
    assert set_names(paths) == names


def test_a_file_without_prompts_is_named_by_its_option(tmp_path: Path) -> None:
    for name in ("empty.txt", "empty.jsonl"):
        (tmp_path / name).write_text("\n \n")
        with pytest.raises(UserError, match=rf"task\.evaluate=.*{name} holds no prompts"):
            read_prompts([str(tmp_path / name)], "task.evaluate")


def test_text_files_round_trip_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.npz"
    save_text(path, [((1, 2, 300), 1), ((70000, 5), 1)])
    assert load_text(str(path), 70001) == [((1, 2, 300), 1), ((70000, 5), 1)]
    with pytest.raises(UserError, match="holds token 70000, but this model's vocabulary ends at 511"):
        load_text(str(path), 512)
    other = tmp_path / "other.npz"
    np.savez(other, tokens=np.zeros(3))
    cut, empty, array = tmp_path / "cut.npz", tmp_path / "empty.npz", tmp_path / "array.npy"
    cut.write_bytes(path.read_bytes()[:-40])
    empty.touch()
    np.save(array, np.zeros(3))
    short, real = tmp_path / "short.npz", tmp_path / "real.npz"
    one = np.ones(1, np.int32)
    np.savez(short, tokens=one, lengths=np.array([2]), prompts=one)
    np.savez(real, tokens=np.array([0.5]), lengths=one, prompts=one)
    for wrong in (other, Path(__file__), cut, empty, array, short, real):
        with pytest.raises(UserError, match=r"is no text\.npz"):
            load_text(str(wrong), 512)


def test_openings_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "openings.txt"
    path.write_bytes(b"Write \xff")
    with pytest.raises(UserError, match=r"task\.openings: .*is not UTF-8 text \(byte 6\)"):
        read_openings(str(path))


def test_a_folder_without_a_checkpoint_is_refused_before_any_text_is_written(tmp_path: Path) -> None:
    task, context = task_and_context(tmp_path / "run", "task.self_prompts=9", f"task.resume={tmp_path}")
    with pytest.raises(UserError, match=r"task\.resume=.* holds no training_state\.pt"):
        task.run(context)


def test_a_resumed_run_needs_its_own_text(tmp_path: Path) -> None:
    """New text would not be what the place in the old one was about."""
    (tmp_path / "training_state.pt").touch()
    task, context = task_and_context(tmp_path / "run", "task.self_prompts=9", f"task.resume={tmp_path}")
    with pytest.raises(UserError, match=r"goes on in the text of that run: give it too, task\.text="):
        task.run(context)


def test_an_output_that_cannot_be_made_is_refused_before_the_training(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    task, context = task_and_context(tmp_path / "run", "task.self_prompts=9", f"task.output={file}/draft")
    with pytest.raises(UserError, match=r"task\.output=.* cannot be made: Not a directory"):
        task.run(context)


@pytest.mark.parametrize("environment", [{"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "a"}])
def test_a_broken_torchrun_environment_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(UserError, match="RANK"):
        TrainingWorld.of(environment)


def test_shares_of_all_processes_are_the_whole() -> None:
    worlds = [TrainingWorld.of({"RANK": str(r), "WORLD_SIZE": "3", "LOCAL_RANK": str(r)}) for r in range(3)]
    assert sorted(i for world in worlds for i in world.share(range(10))) == list(range(10))
    assert TrainingWorld.of({}).share([1, 2]) == [1, 2]


def test_torchrun_trains_one_draft_with_two_processes(tmp_path: Path) -> None:
    learn = prompts(tmp_path, "learn", "hello", "what is this", "one two three", "go on", "and on")
    lines = ["task=train_eagle3", *BASE, *SMALL[:-1], "task.trainer.epochs=3", f"task.prompts=[{learn}]"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "engine",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE_ROOT)}
    done = subprocess.run(
        [*command, *lines, f"hydra.run.dir={tmp_path}/run"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = [json.loads(path.read_text()) for path in tmp_path.glob("run*/result.json")]
    assert sorted("draft" in result for result in results) == [False, True]
    (first,) = (result for result in results if "draft" in result)
    assert first["text"]["sequences"] == 5, "the text of both processes"
