"""Run folders: distinct, complete, readable again, and honest about where the code came from."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from engine.code_state import PACKAGE_ROOT, git_state
from engine.errors import UserError
from engine.provenance import config_hash
from engine.runs import RESULT, RUN, RunFolder, create_run, dump_yaml, read_lines, read_run, write_json

CONFIG = {"seed": None, "prompt": "${x} it's 1e3", "model": {"path": "a,b=c@d%e f", "n": 3}}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(st.characters(blacklist_categories=["Cs"]))
TREES = st.recursive(
    SCALARS | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


@given(TREES)
def test_yaml_reads_back_as_written(tree: object) -> None:
    assert yaml.safe_load(dump_yaml(tree)) == tree


@pytest.mark.parametrize(
    "text", ["1e3", "true", "null", "nan", ".inf", "0x1f", "1_000", "12:30", "", "~", "- a"]
)
def test_text_stays_text_for_hydras_own_reader_too(text: str) -> None:
    read = OmegaConf.to_container(OmegaConf.create(dump_yaml({"p": text})))
    assert read == {"p": text}


def test_folder_reads_back(tmp_path: Path) -> None:
    run = create_run(tmp_path / "a" / "b", CONFIG, ["seed=1", "prompt='${x}'"], {"job": {"name": "x"}})
    run.record(seed=7, device="cpu")
    config, overrides, facts = read_run(run.path)
    assert (config, overrides) == (CONFIG, ["seed=1", "prompt='${x}'"])
    assert (facts["seed"], facts["device"], facts["config_hash"]) == (7, "cpu", config_hash(CONFIG))
    assert facts["versions"]["torch"]
    assert facts["versions"]["syncless"]
    assert yaml.safe_load((run.path / ".hydra" / "hydra.yaml").read_text()) == {"job": {"name": "x"}}
    assert not list(run.path.glob(".*.partial"))


def test_hash_ignores_order_and_sees_types() -> None:
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
    assert len({config_hash({"a": v}) for v in (1, 1.0, "1", True, None)}) == 5


def test_same_name_starts_get_folders_of_their_own(tmp_path: Path) -> None:
    """Field report H9."""
    paths: list[Path] = []
    start = threading.Barrier(8)

    def claim() -> None:
        start.wait()
        paths.append(create_run(tmp_path / "t", CONFIG, []).path)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 8
    assert all((path / RUN).is_file() for path in paths)


def test_folder_of_the_caller_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    assert create_run(tmp_path / "t", CONFIG, [], exclusive=False).path == tmp_path / "t"


def test_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError) as caught:
        create_run(tmp_path / "file" / "run", CONFIG, [])
    assert "hydra.run.dir" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["missing", "edited", "torn", "list"])
def test_damaged_folder_is_one_sentence(tmp_path: Path, damage: str) -> None:
    run = create_run(tmp_path / "r", CONFIG, [])
    config = run.path / ".hydra" / "config.yaml"
    texts = {"edited": config.read_text().replace("3", "4"), "torn": "a: [1", "list": "[1]"}
    if damage == "missing":
        config.unlink()
    else:
        config.write_text(texts[damage])
    with pytest.raises(UserError) as caught:
        read_run(run.path)
    assert str(run.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_result_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    run = create_run(tmp_path / "r", CONFIG, [])
    run.write_result({"x": 1})
    with pytest.raises(ValueError, match="JSON"):
        run.write_result({"x": float("nan")})
    assert json.loads((run.path / RESULT).read_text()) == {"x": 1}


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "outputs.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    assert read_lines(file) == [{"a": 1}, {"a": 2}]


def _git(where: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(where), *identity, *arguments], check=True, capture_output=True)


def _checkout(where: Path) -> Path:
    where.mkdir()
    (where / "pyproject.toml").write_text("")
    _git(where, "init", "-q")
    _git(where, "add", "-A")
    _git(where, "commit", "-qm", "x")
    return where


def test_commit_and_dirty_flag_of_the_own_checkout(tmp_path: Path) -> None:
    root = _checkout(tmp_path / "repo")
    clean = git_state(root)
    (root / "new").write_text("")
    dirty = git_state(root)
    assert clean is not None
    assert dirty is not None
    assert (clean["dirty"], dirty["dirty"], len(clean["commit"])) == (False, True, 40)
    assert clean["commit"] == dirty["commit"]


def test_a_wheel_inside_somebodys_repository_has_no_commit(tmp_path: Path) -> None:
    site = _checkout(tmp_path / "repo") / ".venv" / "site-packages"
    site.mkdir(parents=True)
    assert git_state(site) is None
    assert git_state(tmp_path) is None


def test_working_directory_and_git_variables_do_not_matter(tmp_path: Path) -> None:
    other = _checkout(tmp_path / "other")
    code = (
        "from engine.code_state import git_state as s, PACKAGE_ROOT as r; g = s(r); print(g and g['commit'])"
    )
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PACKAGE_ROOT), "GIT_DIR": str(other / ".git")}
    done = subprocess.run([sys.executable, "-c", code], cwd=other, env=env, capture_output=True, text=True)
    own = git_state(PACKAGE_ROOT)
    assert done.stdout.strip() == str(own and own["commit"])


def test_json_is_not_ascii_only(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"t": "日本 🌶"})
    assert "日本 🌶" in (tmp_path / "x.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b\x0cc\x1cd", "\ud800 alone", "plain é", "a\r\nb"])
def test_any_text_comes_back_from_a_file_of_lines(tmp_path: Path, text: str) -> None:
    RunFolder(tmp_path).write_lines("rows.jsonl", [{"text": text}, {"text": "next"}])
    assert [row["text"] for row in read_lines(tmp_path / "rows.jsonl")] == [text, "next"]


@pytest.mark.parametrize("name", ["", "  "])
def test_a_run_folder_needs_a_name(name: str) -> None:
    with pytest.raises(UserError, match=r"hydra\.run\.dir is empty"):
        create_run(name, CONFIG, [])
