"""The text to train on: what the model writes itself, the file that keeps it, and names of sets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from training_parts import engine
from training_task import task_and_context

from engine.errors import UserError
from engine.tasks.base import Outcome, TaskContext
from engine.tasks.drive import Job
from engine.tasks.interrupts import StopFlag
from engine.tasks.training_files import load_text, save_text, set_names
from engine.tasks.training_text import Limits, Writer
from engine.tasks.training_time import WritingTime


def test_an_answer_is_greedy_to_its_stop_or_its_limit(trained: tuple[Path, Outcome, TaskContext]) -> None:
    _, _, context = trained
    llm, limit = engine(), context.config["task"]["answer_tokens"]
    for ids, prompt in load_text(str(context.folder().path / "text.npz"), 512):
        assert llm.tokenizer.decode(ids[:prompt]).startswith("user: ")
        answer = list(ids[prompt:])
        assert answer == [int(llm.next_token_logits(ids[:n]).argmax()) for n in range(prompt, len(ids))]
        assert answer[-1] in llm.tokenizer.eos_ids or len(answer) == limit
        assert not set(answer[:-1]) & set(llm.tokenizer.eos_ids)


def test_the_model_writes_prompts_documents_and_answers_itself(tmp_path: Path) -> None:
    """At temperature 1 a random model of 512 tokens ends about every third turn within 200."""
    _, context = task_and_context(tmp_path)
    limits, until, said = Limits(200, 16, 16, 1.0), WritingTime.of(None), list[str]()
    writer = Writer(engine(), context, StopFlag(context.stderr), limits, 3, until, said.append)
    turns = writer.turns(("", "Write "), 24, "turns")
    assert turns, "none of 24 turns ended within 200 tokens"
    assert len(set(turns)) == len(turns)
    assert len(said) == 1
    assert said[0].startswith(f"text: of 24 turns, {24 - len(turns)} are not used: ")
    assert "did not end within 200 tokens (task.prompt_tokens)" in said[0]
    documents = writer.documents(["tell me", "and this"])
    asked = writer.about(documents, ("Summarize: {text}", "{text}?"), 2)
    assert len(asked) == 2 * len(documents)
    assert asked[0].startswith("Summarize: ")
    assert documents[0][:4] in asked[0]
    answers = writer.answers(writer.texts(asked), "answers")
    assert [a.job.key for a in answers] == list(range(len(asked)))
    assert all(0 < a.tokens <= 16 for a in answers)


def test_why_less_text_is_used_than_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [("stop", "a"), ("stop", "a"), ("stop", " "), ("length", "b"), ("length", "c"), ("stop", "d")]
    _, context = task_and_context(tmp_path)
    limits, until, said = Limits(9, 16, 16, 1.0), WritingTime.of(None), list[str]()
    writer = Writer(engine(), context, StopFlag(context.stderr), limits, 3, until, said.append)

    def answers(writer: Writer, jobs: list[Job], what: str, stage: str) -> list[SimpleNamespace]:
        samples = [SimpleNamespace(finish_reason=reason, text=text) for reason, text in ends]
        return [SimpleNamespace(job=job, samples=[one]) for job, one in zip(jobs, samples, strict=True)]

    monkeypatch.setattr(Writer, "_run", answers)
    assert writer.turns(("",), 6, "user turns") == ["a", "d"]
    assert writer.documents(["tell me"] * 6) == ["a", "a", "b", "c", "d"]
    assert said == [
        "text: of 6 user turns, 4 are not used: 2 did not end within 9 tokens (task.prompt_tokens), "
        "1 said nothing, 1 repeated another",
        "text: of 6 documents, 1 are not used: 1 said nothing",
    ]
    ends[:] = [("stop", "a")]
    assert writer.turns(("",), 1, "user turns") == ["a"]
    assert len(said) == 2, "nothing to say where all are used"


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


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["data/alpaca/question.jsonl", "data/gsm8k/test.jsonl"], ["alpaca", "gsm8k"]),
        (["exam.txt"], ["exam"]),
        (["sets/a.txt", "sets/b.txt"], ["sets/a", "sets/b"]),
        (["a.txt", "b.txt"], ["a", "b"]),
        (["x/sets/a.txt", "y/sets/a.txt"], ["x/sets/a.txt", "y/sets/a.txt"]),
        (["/home/x/sets/a.txt", "/home/y/sets/a.txt"], ["x/sets/a.txt", "y/sets/a.txt"]),
        (["/x/sets/a.txt", "x/sets/a.txt"], ["sets/a 1", "sets/a 2"]),
        (["/a.txt"], ["a"]),
        (["sets/a.txt", "sets/a.txt"], ["sets", "sets"]),
        ([], []),
    ],
)
def test_no_two_files_share_a_name(paths: list[str], names: list[str]) -> None:
    assert set_names(paths) == names
