"""Workloads of published data sets and made loads: rows to requests, seeds, and what is wrong with a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.build import make_config, target_class
from engine.conf_tree import CONF
from engine.errors import UserError
from engine.rules import compose_checked
from engine.workloads.base import WorkItem, Workload
from engine.workloads.rows import parse_row

DATA = Path(__file__).parents[3] / "shared" / "data"
SETS = ("gsm8k", "humaneval", "alpaca", "sharegpt")
MADE = ("random", "random_lengths", "shared_prefix", "multi_turn")


def workload(*overrides: str) -> Workload:
    """The workload of these overrides, its yaml read without Hydra, which would take most of the time."""
    values = dict(line.split("=", 1) for line in overrides)
    node = yaml.safe_load((CONF / "workload" / f"{values.pop('workload')}.yaml").read_text())
    node |= {key: value if key == "path" else yaml.safe_load(value) for key, value in values.items()}
    cls = target_class(node["_target_"])
    made = cls(make_config(cls, node, "workload"))
    assert isinstance(made, Workload)
    return made


def items(*overrides: str) -> list[WorkItem]:
    return workload(*overrides).items(320)


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return f"path={path}"


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


# --- the hub ---


def cached(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """A data set owner/set in a cache of the hub's client, as it leaves one."""
    monkeypatch.setenv("HF_HUB_CACHE", str(home))
    folder = home / "datasets--owner--set"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / name).write_text(text)


def test_a_hub_id_in_the_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, monkeypatch, "test.jsonl", '{"question": "a"}\n')
    assert items("workload=gsm8k", "path=owner/set") == [WorkItem(prompt="a")]


def test_a_hub_id_that_is_not_here_is_judged_by_what_could_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"workload\.path=owner/set is neither.*pip install huggingface_hub"):
        workload("workload=gsm8k", "path=owner/set")


def test_a_failed_download_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route\nto the hub")

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "snapshot_download", fail)
    found = workload("workload=gsm8k", "path=owner/set")
    with pytest.raises(UserError) as caught:
        found.fetch()
    assert str(caught.value).startswith("workload.path=owner/set could not be fetched (no route);")


def test_a_data_set_without_such_a_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(UserError, match=r"has no file main/test-\*\.parquet or test\.jsonl"):
        workload("workload=gsm8k", "path=owner/set").fetch()


def test_parquet_is_read_where_its_reader_is_installed(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"question": ["a", "b"]}), tmp_path / "w.parquet")
    assert [i.prompt for i in items("workload=gsm8k", f"path={tmp_path / 'w.parquet'}")] == ["a", "b"]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        items("workload=gsm8k", f"path={tmp_path / 'broken.parquet'}")


def test_parquet_without_its_reader_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "w.parquet").touch()
    with pytest.raises(UserError, match="pip install pyarrow, or give a JSONL file"):
        items("workload=gsm8k", f"path={tmp_path / 'w.parquet'}")


# --- made loads ---


@pytest.mark.parametrize("name", MADE)
def test_made_loads_depend_on_their_seed_alone(name: str) -> None:
    small = (f"workload={name}", "limit=6")
    assert items(*small) == items(*small)
    assert items(*small) != items(*small, "seed=1")
    assert len(items(*small)) == 6
    longer = items(*small, "limit=8")
    assert longer[:6] == items(*small)


@pytest.mark.parametrize(("name", "honest"), [*((name, False) for name in MADE[:3]), ("multi_turn", True)])
def test_random_tokens_are_marked(name: str, honest: bool) -> None:
    """Field report M2."""
    assert workload(f"workload={name}").representative is honest


def test_lengths_fill_their_ranges() -> None:
    found = items("workload=random", "count=200", "input_len=[3,7]", "output_len=[2,4]")
    assert {len(item.ids) for item in found} == {3, 4, 5, 6, 7}
    assert {item.max_tokens for item in found} == {2, 3, 4}
    assert all(item.max_tokens is None for item in items("workload=random", "count=3"))
    assert {item.max_tokens for item in items("workload=random", "output_len=9")} == {9}
    mixed = items("workload=random_lengths")
    assert len(mixed) == 512
    assert all(32 <= len(i.ids) <= 1024 and 32 <= (i.max_tokens or 0) <= 512 for i in mixed)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("input_len=[7,3]", "workload.input_len=[7, 3] is no range"),
        ("input_len=[0,3]", "workload.input_len=[0, 3] is no range"),
        ("output_len=[9,2]", "workload.output_len=[9, 2] is no range"),
        ("input_len=0", "workload.input_len=0 has to be at least 1"),
        ("input_len=[1,2,3]", "workload.input_len=[1, 2, 3] has to be an integer or a list"),
    ],
)
def test_wrong_lengths_are_named(override: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        compose_checked(["workload=random", f"workload.{override}", "model=tiny", "device=cpu"])
    assert words in str(caught.value)


def test_groups_share_their_prefix_and_nothing_else() -> None:
    found = items("workload=shared_prefix", "groups=3", "per_group=4", "prefix_len=20", "suffix_len=5")
    heads = [item.ids[:20] for item in found]
    assert len(found) == 12
    assert sorted(heads.count(head) for head in set(heads)) == [4, 4, 4]
    assert len({item.ids for item in found}) == 12
    assert heads != sorted(heads, key=heads.index), "groups are mixed"


def test_conversations_have_their_turns() -> None:
    found = items("workload=multi_turn", "count=5", "turns=12", "system=Be brief.")
    assert [len(item.turns) for item in found] == [12] * 5
    assert {item.system for item in found} == {"Be brief."}
    assert len({item.turns for item in found}) == 5
    assert not any("{" in text for item in found for text in item.turns)
