"""Workloads of published data sets: rows to requests, seeds, and what is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from workload_cases import items, write

from engine.errors import UserError
from engine.rules import compose_checked
from engine.workloads.base import WorkItem
from engine.workloads.rows import parse_row

DATA = Path(__file__).parents[3] / "shared" / "data"
SETS = ("gsm8k", "humaneval", "alpaca", "sharegpt")


@pytest.mark.parametrize("name", SETS)
def test_without_a_path_the_way_to_the_data_is_told(name: str) -> None:
    with pytest.raises(UserError) as caught:
        compose_checked([f"workload={name}", "model=tiny", "device=cpu"])
    message = str(caught.value)
    assert f"workload={name}" in message
    assert "workload.path=FILE" in message
    assert "workload.path=sample" in message
    assert '{"' in message, "shows a row"
    assert "\n" not in message


@pytest.mark.parametrize("name", SETS)
def test_samples_ship_and_survive_the_run_folder(name: str) -> None:
    found = items(f"workload={name}", "path=sample")
    assert len(found) >= 4
    assert len({item.title() for item in found}) == len(found)
    assert [parse_row(json.loads(json.dumps(item.as_row())), "x") for item in found] == found


ROWS = [
    ("gsm8k", {"question": "1 + 1?", "answer": "#### 2"}, [WorkItem(prompt="1 + 1?")]),
    ("gsm8k", {"question": "1 + 1?"}, [WorkItem(prompt="1 + 1?")]),
    ("humaneval", {"task_id": "x", "prompt": "def f():\n"}, [WorkItem(prompt="def f():\n")]),
    ("alpaca", {"instruction": "Do it.", "input": ""}, [WorkItem(prompt="Do it.")]),
    ("alpaca", {"instruction": "Do it.", "output": "done"}, [WorkItem(prompt="Do it.")]),
    ("alpaca", {"instruction": "Do it.", "input": "to this"}, [WorkItem(prompt="Do it.\n\nto this")]),
    ("alpaca", {"turns": ["Do it."], "question_id": 3}, [WorkItem(prompt="Do it.")]),
]


@pytest.mark.parametrize(("name", "row", "wanted"), ROWS)
@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_rows_become_requests(
    tmp_path: Path, name: str, row: dict[str, str], wanted: list[WorkItem], form: str
) -> None:
    file = tmp_path / f"w.{form}"
    file.write_text(json.dumps([row], indent=2) if form == "json" else f"\n{json.dumps(row)}\n\n")
    assert items(f"workload={name}", f"path={file}") == wanted


def said(*texts: str, roles: tuple[str, str] = ("human", "gpt")) -> dict[str, Any]:
    return {"conversations": [{"from": roles[i % 2], "value": text} for i, text in enumerate(texts)]}


CONVERSATIONS = [
    (said("a"), [WorkItem(prompt="a")], [[("user", "a")]]),
    (
        said("a", "b", "c", "d"),
        [WorkItem(turns=("a", "c"))],
        [[("user", "a")], [("user", "a"), ("assistant", "b"), ("user", "c")]],
    ),
    # what an assistant says first is dropped, neighbours of one side are one message, empty ones are none
    (said("x", "a", "b", roles=("gpt", "human")), [WorkItem(prompt="a")], [[("user", "a")]]),
    (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "human", "value": "b"}]},
        [WorkItem(prompt="a\n\nb")],
        [[("user", "a\n\nb")]],
    ),
    (
        {"conversations": [{"from": "system", "value": "s"}, *said("a", "b", "c")["conversations"]]},
        [WorkItem(turns=("a", "c"), system="s")],
        [
            [("system", "s"), ("user", "a")],
            [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")],
        ],
    ),
    (said("a", " ", "c", "d"), [WorkItem(prompt="a\n\nc")], [[("user", "a\n\nc")]]),
]


@pytest.mark.parametrize(("row", "by_engine", "by_file"), CONVERSATIONS)
def test_conversations_of_sharegpt(
    tmp_path: Path, row: Any, by_engine: list[WorkItem], by_file: list[list[tuple[str, str]]]
) -> None:
    path = write(tmp_path / "w.jsonl", {"conversations": []}, row)
    assert items("workload=sharegpt", path) == by_engine
    found = items("workload=sharegpt", path, "answers=file")
    assert [[(m["role"], m["content"]) for m in item.messages] for item in found] == by_file


def test_conversations_can_be_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "w.jsonl", said("a", "b", "c", "d", "e", "f"))
    assert items("workload=sharegpt", path, "max_turns=2") == [WorkItem(turns=("a", "c"))]
    assert len(items("workload=sharegpt", path, "max_turns=2", "answers=file")) == 2


BAD = {
    "gsm8k": ["{", "[1]", "{}", '{"question": 3}', '{"question": " "}', '{"question": "a", "answer": 3}'],
    "humaneval": ["7", "{}", '{"prompt": ""}'],
    "alpaca": ["null", "{}", '{"instruction": ""}', '{"instruction": "a", "input": 3}', '{"turns": [1]}'],
    "sharegpt": [
        '"a"',
        "{}",
        '{"conversations": {}}',
        '{"conversations": [3]}',
        '{"conversations": [{"from": "human"}]}',
        '{"conversations": [{"from": "cat", "value": "a"}]}',
    ],
}
GOOD = {
    "gsm8k": {"question": "a"},
    "humaneval": {"prompt": "a"},
    "alpaca": {"instruction": "a"},
    "sharegpt": said("a"),
}


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in BAD.items() for line in lines])
def test_a_bad_row_is_named_before_a_model_is_read(tmp_path: Path, name: str, line: str) -> None:
    path = write(tmp_path / "w.jsonl", GOOD[name], "", line, '{"also": "bad"}')
    with pytest.raises(UserError) as caught:
        compose_checked([f"workload={name}", f"workload.{path}", "model=tiny", "device=cpu"])
    message = str(caught.value)
    assert "line 3" in message
    assert "line 4" not in message
    assert "\n" not in message


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("content", ["", "\n\n", "[]", None])
def test_useless_files_are_one_sentence(tmp_path: Path, name: str, content: str | None) -> None:
    file = tmp_path / "w.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError) as caught:
        items(f"workload={name}", f"path={file}")
    assert f"workload.path={file}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_entry_of_an_array_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps([{"instruction": "a"}, {"instruction": 3}]))
    with pytest.raises(UserError, match=r"w\.json, entry 2: instruction"):
        items("workload=alpaca", f"path={tmp_path / 'w.json'}")


def test_a_seed_draws_another_part_and_the_same_one_again(tmp_path: Path) -> None:
    path = write(tmp_path / "w.jsonl", *({"question": str(n)} for n in range(40)))
    part = ("workload=gsm8k", path, "limit=5")
    texts = lambda *more: [item.prompt for item in items(*part, *more)]  # noqa: E731
    assert texts() == ["0", "1", "2", "3", "4"]
    assert texts("seed=1") == texts("seed=1") != texts("seed=2")
    assert len(set(texts("seed=1"))) == 5
    assert sorted(texts("limit=40", "seed=1")) == sorted(texts("limit=40"))


@pytest.mark.parametrize("name", ["gsm8k", "humaneval", "alpaca", "sharegpt", "file"])
def test_limit_has_to_be_a_number_from_one(name: str) -> None:
    with pytest.raises(UserError, match=r"workload\.limit=0 has to be at least 1"):
        items(f"workload={name}", "path=sample", "limit=0")


REAL = [
    ("gsm8k", "gsm8k/test.jsonl", 1000),
    ("gsm8k", "gsm8k/train_questions.jsonl", 7472),
    ("humaneval", "humaneval/humaneval.jsonl", 120),
    ("alpaca", "alpaca/question.jsonl", 80),
    ("file", "summarise/question.jsonl", 80),
]


@pytest.mark.parametrize(("name", "file", "count"), REAL)
def test_the_real_files_are_read(name: str, file: str, count: int) -> None:
    if not (DATA / file).is_file():
        pytest.skip("the data sets are not on this machine")
    found = items(f"workload={name}", f"path={DATA / file}")
    assert len(found) == count
    assert all(item.prompt for item in found)
