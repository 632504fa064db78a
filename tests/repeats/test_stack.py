"""What a verdict names when the stack is another: versions, hashes, driver, device, threads, code, files."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.model_folder import write_model

from engine.build import make_config, target_class
from engine.models.smollm2 import SHAPE
from engine.provenance import driver, packages
from engine.replay.changes import Stack, shown, stack_changes
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK

FACTS: dict[str, Any] = {
    "versions": {"torch": "2.13.0", "syncless": "0.1.0"},
    "machine": {"cpu": "one", "driver": "550.54.15"},
    "environment": {"OMP_NUM_THREADS": "1"},
    "device": "cuda:0",
    "device_name": "NVIDIA H200",
    "threads": 2,
    "arithmetic": {"cpu": "AVX512", "cudnn": 91000},
    "kv_tokens": 4096,
    "model_files": {"a.b/c.gguf": "aa"},
    "draft_files": {"model.safetensors": "bb"},
    "code": {"sha256": "x"},
    "git": {"commit": "c" * 40, "dirty": False},
}
FILES = {"engine/step.py": "1", "conf/config.yaml": "2"}
PACKAGES = {"torch": "2.13.0", "nvidia-cublas": "13.1"}


def changes(*path_and_value: Any, files: Any = FILES, packages: Any = PACKAGES) -> dict[str, Any]:
    """Of a stack that differs in one fact."""
    *path, value = path_and_value
    now = json.loads(json.dumps(FACTS))
    node = now
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    return stack_changes(Stack(FACTS, FILES, PACKAGES), Stack(now, files, packages))


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("versions", "torch"), "2.12.1", "versions.torch: 2.13.0 -> 2.12.1"),
        (("machine", "driver"), "560.1", "machine.driver: 550.54.15 -> 560.1"),
        (("machine", "cpu"), "two", "machine.cpu: one -> two"),
        (("environment", "OMP_NUM_THREADS"), None, "environment.OMP_NUM_THREADS: 1 -> None"),
        (("device",), "cpu", "device: cuda:0 -> cpu"),
        (("device_name",), "another", "device_name: NVIDIA H200 -> another"),
        (("threads",), 1, "threads: 2 -> 1"),
        (("arithmetic", "cpu"), "AVX2", "arithmetic.cpu: AVX512 -> AVX2"),
        (("kv_tokens",), 2048, "kv_tokens: 4096 -> 2048"),
        (("model_files", "a.b/c.gguf"), "ff", "model_files.a.b/c.gguf: aa -> ff"),
        (("draft_files", "model.safetensors"), "ff", "draft_files.model.safetensors: bb -> ff"),
    ],
)
def test_each_fact_is_named(path: tuple[str, ...], value: Any, line: str) -> None:
    assert shown(changes(*path, value)) == [line]


def test_the_same_stack_has_no_changes_whatever_its_commit() -> None:
    """A wheel of the same code has no commit."""
    assert changes("git", None) == {}
    assert changes("git", {"commit": "d" * 40, "dirty": True}) == {}


def test_other_code_is_named_by_its_files_and_its_commit() -> None:
    other = {"engine/step.py": "1", "conf/config.yaml": "3", "engine/new.py": "4"}
    lines = shown(changes("code", {"sha256": "y"}, files=other))
    assert lines == [
        f"code: 0.1.0, commit {'c' * 12} -> 0.1.0, commit {'c' * 12}",
        "code files: conf/config.yaml, engine/new.py",
    ]


def test_packages_that_nobody_names_are_on_one_line() -> None:
    other = {**{f"p{i}": "1" for i in range(9)}, "torch": "2.13.0", "nvidia-cublas": "13.2"}
    (line,) = shown(changes("threads", 2, packages=other))
    assert line == "other packages: nvidia-cublas, p0, p1, p2, p3, p4 and 4 more"


def test_what_an_older_run_did_not_know_is_no_change() -> None:
    old = {name: FACTS[name] for name in ("versions", "device")}
    assert stack_changes(Stack(old, {}, {}), Stack(FACTS, FILES, PACKAGES)) == {
        "git": (None, FACTS["git"])
    }, "without a hash of its code the commit is all there is"


def test_packages_are_those_that_are_installed() -> None:
    from importlib.metadata import version

    found = packages()
    assert len(found) > 20
    assert {found[name] for name in ("torch", "hydra-core")} == {version("torch"), version("hydra-core")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56\nGCC 12.2.0\n",
            "550.54.15",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\n", "575.57.08"),
        (None, None),
    ],
)
def test_the_driver_is_read_where_it_says_its_version(
    tmp_path: Path, text: str | None, expected: str | None
) -> None:
    if text is not None:
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert driver(tmp_path) == expected


# -- whole runs


def test_edited_facts_of_a_copied_folder_are_named(run: Any, again: Any, tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(run("workload.limit=1"), folder)
    facts = json.loads((folder / "run.json").read_text())
    facts["versions"]["triton"] = "0.1"
    facts["machine"]["driver"] = "1.2.3"
    facts["threads"] = 7
    (folder / "run.json").write_text(json.dumps(facts))
    installed = (folder / "packages.txt").read_text()
    (folder / "packages.txt").write_text(installed.replace("pytest==", "pytest==0+"))
    code, out, report = again(folder, "threads=1")
    assert (code, report["identical"]) == (EXIT_OK, True)
    assert report["changed"]["versions.triton"][0] == "0.1"
    for line in (
        "versions.triton: 0.1 -> ",
        "machine.driver: 1.2.3 -> ",
        "threads: 7 -> 1",
        "other packages: pytest\n",
    ):
        assert f"changed: {line}" in out


LOCAL = ("model=local", "model.dtype=float32", "sampling.max_tokens=12", "workload.limit=2", "task.raw=true")


def test_a_model_whose_weights_have_changed_is_named(run: Any, again: Any, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    folder = run(*LOCAL, f"model.path={model}", base=("threads=1",))
    facts = json.loads((folder / "run.json").read_text())
    weights = (model / "model.safetensors").read_bytes()
    assert facts["model_files"]["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert set(facts["model_files"]) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert again(folder)[0] == EXIT_OK
    other = write_model(tmp_path / "other", seed=1)
    code, out, report = again(folder, f"model.path={other}")
    assert (code, report["identical"]) == (EXIT_DIFFERENT, False)
    assert set(report["changed"]) == {"model_files.model.safetensors"}
    assert f"set anew: model.path: {model} -> {other}" in out
    (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text() + "\n")
    code, _, report = again(folder)
    assert (code, set(report["changed"])) == (EXIT_OK, {"model_files.tokenizer.json"})


def test_a_corpus_that_has_changed_is_named(run: Any, again: Any, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    corpus = tmp_path / "home" / "corpus.txt"
    corpus.write_text("some text to look in, some text to find\n")
    folder = run("spec=ngram", "attention=torch", "spec.corpus=corpus.txt", "workload.limit=1")
    assert again(folder)[2]["changed"] == {}, "a relative path means the folder that the run was started in"
    corpus.write_text("other text\n")
    code, _, report = again(folder)
    assert (code, set(report["changed"])) == (EXIT_OK, {"draft_files.corpus.txt"})


def test_a_draft_names_its_files(tmp_path: Path) -> None:
    eagle3 = target_class("speculative.eagle3.drafter.Eagle3")

    def files(**options: Any) -> list[Path]:
        return list(eagle3.files(make_config(eagle3, options, "spec"), SHAPE))  # type: ignore[attr-defined]

    shipped = files()
    assert sorted(path.name for path in shipped) == ["config.json", "model.safetensors"]
    assert all(path.is_file() for path in shipped)
    assert files(load="dummy") == []
    assert files(draft=str(tmp_path)) == [tmp_path / "config.json", tmp_path / "pytorch_model.bin"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert files(draft=str(tmp_path)) == [tmp_path / "config.json", tmp_path / "model.safetensors"]
    one = tmp_path / "model.safetensors"
    assert files(draft=str(one)) == [tmp_path / "config.json", one]


def test_the_snapshot_holds_everything(run: Any) -> None:
    facts = json.loads((run("workload.limit=1", "sampling=creative") / "run.json").read_text())
    stack = "git code versions machine environment threads arithmetic device device_name dtype model_files"
    assert {*stack.split(), "draft_files", "measured", "kv_tokens", "max_context", "seed", "cwd"} <= set(
        facts
    )
    assert isinstance(facts["seed"], int), "field report R5: no seed is a fresh one, and it is kept"
