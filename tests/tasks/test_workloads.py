"""Prompt files: what they may hold, and which line is wrong."""

from pathlib import Path

import pytest

from engine.errors import UserError
from engine.workloads.base import WorkItem, Workload
from engine.workloads.builtin import BuiltinPrompts
from engine.workloads.file import FileWorkload
from engine.workloads.random import RandomTokens
from engine.workloads.rows import parse_row
from engine.workloads.single import SinglePrompt

GOOD = [
    ('{"prompt": "a"}', WorkItem(prompt="a")),
    ('{"question": "a", "answer": "b"}', WorkItem(prompt="a")),
    ('{"turns": ["a"], "question_id": 3}', WorkItem(prompt="a")),
    ('{"turns": ["a", "b"]}', WorkItem(turns=("a", "b"))),
    (
        '{"messages": [{"role": "user", "content": "a", "x": 1}]}',
        WorkItem(messages=({"role": "user", "content": "a"},)),
    ),
    ('{"ids": [1, 2]}', WorkItem(ids=(1, 2))),
]
BAD = [
    "[" * 100_000,
    "{",
    "[1]",
    "3",
    '"text"',
    "{}",
    '{"text": "a"}',
    '{"prompt": 3}',
    '{"prompt": "  "}',
    '{"turns": []}',
    '{"turns": [1]}',
    '{"turns": "a"}',
    '{"messages": []}',
    '{"messages": {"role": "user"}}',
    '{"messages": [{"role": "user"}]}',
    '{"messages": [{"role": 1, "content": "a"}]}',
    '{"ids": [true]}',
    '{"ids": [-1]}',
    '{"ids": []}',
]


def load(path: Path, limit: int | None = None) -> list[WorkItem]:
    return FileWorkload(FileWorkload.Config(path=str(path), limit=limit)).items(320)


@pytest.mark.parametrize(("line", "item"), GOOD)
def test_rows(tmp_path: Path, line: str, item: WorkItem) -> None:
    (tmp_path / "w.jsonl").write_text(f"\n{line}\n\n")
    assert load(tmp_path / "w.jsonl") == [item]


@pytest.mark.parametrize(("line", "item"), GOOD)
def test_items_survive_the_run_folder(line: str, item: WorkItem) -> None:
    assert parse_row(item.as_row(), "x") == item
    assert item.title()


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_named_before_any_work(tmp_path: Path, line: str) -> None:
    (tmp_path / "w.jsonl").write_text('{"prompt": "fine"}\n\n' + line + '\n{"also": "bad"}\n')
    with pytest.raises(UserError) as caught:
        FileWorkload(FileWorkload.Config(path=str(tmp_path / "w.jsonl")))
    message = str(caught.value)
    assert "line 3" in message
    assert "line 4" not in message
    assert "\n" not in message


def test_text_keeps_everything_but_line_ends(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_bytes('\ufeff a, b\r\n\r\n{"prompt": 1}\n日本\u2028x'.encode())
    assert [i.prompt for i in load(tmp_path / "w.txt")] == [" a, b", '{"prompt": 1}', "日本\u2028x"]


def test_limit(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("a\nb\nc\n")
    assert [i.prompt for i in load(tmp_path / "w.txt", 2)] == ["a", "b"]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe", None])
@pytest.mark.parametrize("name", ["w.txt", "w.jsonl"])
def test_useless_files_are_one_sentence(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        load(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_has_to_be_given() -> None:
    with pytest.raises(UserError, match=r"workload\.path"):
        FileWorkload(FileWorkload.Config())


def test_builtin_prompts_are_varied() -> None:
    items = BuiltinPrompts(Workload.Config()).items(320)
    assert 6 <= len(items) <= 10
    assert len({item.title() for item in items}) == len(items)
    assert any(item.messages for item in items)
    assert len(BuiltinPrompts(Workload.Config(limit=2)).items(320)) == 2


@pytest.mark.parametrize("vocab", [300, 49152])
def test_random_tokens_are_repeatable_and_inside_the_vocabulary(vocab: int) -> None:
    make = lambda seed: RandomTokens(RandomTokens.Config(count=4, input_len=50, seed=seed)).items(vocab)  # noqa: E731
    assert make(1) == make(1)
    assert make(1) != make(2)
    assert [len(item.ids) for item in make(1)] == [50] * 4
    assert all(0 <= token < vocab for item in make(1) for token in item.ids)
    assert not RandomTokens.representative


@pytest.mark.parametrize(
    ("typed", "read"), [("a\n", "a"), ("a\r\n", "a"), ("a\nb", "a\nb"), (" a\n\n", " a\n")]
)
def test_prompt_from_standard_input(typed: str, read: str) -> None:
    import io

    assert SinglePrompt("-", io.StringIO(typed)).items(1) == [WorkItem(prompt=read)]


@pytest.mark.parametrize("typed", ["", "\n", "  \n"])
def test_empty_standard_input_is_an_error(typed: str) -> None:
    import io

    with pytest.raises(UserError, match="standard input"):
        SinglePrompt("-", io.StringIO(typed))
