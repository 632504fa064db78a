"""The command line as its user meets it: exit codes, streams, folders, help."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from engine import __version__
from engine.cli.main import CLOSED_PIPE, INTERRUPTED, main, readable
from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.runs import read_run

ROOT = Path(__file__).resolve().parents[2]
FAST = ("model=tiny", "sampling.max_tokens=3", "seed=1", "device=cpu")
TREE = conf_tree()


def process(*arguments: str, cwd: Path, python: tuple[str, ...] = (), **options) -> subprocess.Popen[str]:
    command = [sys.executable, *python, "-m", "engine", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=cwd, env=env, text=True, **{**streams, **options})


def test_help_has_one_line_for_every_group_option_value_and_flag(cli):
    ran = cli("--help")
    lines = ran.out.splitlines()
    assert ran.code == 0
    for group, options in TREE.groups.items():
        at = lines.index(f"  {group}")
        body = lines[at + 1 : at + 1 + len(options)]
        for (name, option), line in zip(options.items(), body, strict=True):
            mark = "*" if TREE.defaults.get(group) == name else " "
            assert line.startswith(f"   {mark} {name}")
            assert option.summary in line
    for word in [*TREE.scalars, "--multirun", "--cfg", "--info", "--version", "task=explain"]:
        assert word in ran.out


def test_version(cli):
    assert cli("--version").out == f"syncless {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attention=nope"], ["error: attention=nope", "torch"]),
        (["model.dtyp=bf16"], ["did you mean dtype?"]),
        (["overlap=true"], ["it has future, none"]),
        (["+foo=1"], ["there is no foo"]),
        (["prompt="], ["prompt is empty"]),
        (["model=local", "model.path=/no/such/folder"], ["/no/such/folder"]),
        (["model=local"], ["model.path"]),
        (["workload=file", "workload.path=/no/such"], ["/no/such"]),
        (["model=tiny", "model.dtype=int4"], ["model.dtype=int4", "model.dtype="]),
        (["--cofg", "job"], ["no flag --cofg", "did you mean --cfg?"]),
        (["--cfg", "jab"], ["jab"]),
        (["--cfg", "job", "attention=nope"], ["attention=nope"]),
        (["-m", "overlap=none,nope"], ["overlap has no option nope"]),
        (["-m", "model=tiny", "cache.page_size=0"], ["cache.page_size=0"]),
        (["task=explain", "cache.page_size=0"], ["cache.page_size=0"]),
        (["model=tiny", "attention=nope", "sampling.max_tokens=99999"], ["2 problems", "nope", "max_tokens"]),
        (["prompt=\udcff"], ["not valid UTF-8"]),
    ],
)
def test_a_mistake_is_one_message_on_stderr_and_exit_1(cli, arguments, words):
    ran = cli(*arguments)
    assert ran.code == 1
    assert ran.out == ""
    for word in words:
        assert word in ran.err
    assert "Traceback" not in ran.err
    assert "HYDRA_FULL_ERROR" not in ran.err
    assert not list(Path.cwd().rglob("run.json")), "nothing ran, so no run folder is left"


def test_several_problems_are_a_list():
    assert readable(UserError("one")) == "error: one"
    assert readable(UserError("one\ntwo")).splitlines() == ["error: 2 problems", "  - one", "  - two"]


def test_json_on_stdout_is_exactly_one_object(cli):
    ran = cli(*FAST, "task.format=json", "prompt=hi there")
    assert ran.code == 0
    document = ran.json()
    assert ran.out.count("\n") == 1
    assert Path(document["run"]).is_dir()


def test_last_line_is_the_run_folder_and_it_holds_the_snapshot(cli):
    ran = cli(*FAST, "prompt=Write a haiku! (now), it's ${x}")
    folder = Path(ran.out.splitlines()[-1])
    config, overrides, facts = read_run(folder)
    assert config["prompt"] == "Write a haiku! (now), it's ${x}"
    assert facts["config_hash"]
    assert json.loads((folder / "result.json").read_text())
    assert yaml.safe_load((folder / ".hydra" / "hydra.yaml").read_text())["job"]["name"] == "syncless"
    again = cli(*overrides)
    assert read_run(Path(again.out.splitlines()[-1]))[0] == config, "the recorded overrides run again"


def test_path_with_grammar_characters_reaches_the_snapshot(cli, tmp_path):
    odd = tmp_path / "my prompts@1, 50%=x.txt"
    odd.write_text("hello\n")
    ran = cli(*FAST, "workload=file", f"workload.path={odd}")
    assert ran.code == 0
    assert read_run(Path(ran.out.splitlines()[-1]))[0]["workload"]["path"] == str(odd)


def test_run_folder_that_cannot_be_made_is_one_sentence(cli, tmp_path):
    (tmp_path / "file").write_text("")
    ran = cli(*FAST, f"hydra.run.dir={tmp_path}/file/run")
    assert ran.code == 1
    assert len(ran.err.strip().splitlines()) == 1
    assert "hydra.run.dir" in ran.err


def test_two_runs_into_one_folder_do_not_share_it(cli):
    folders = {cli(*FAST, "prompt=hi", "hydra.run.dir=same").out.splitlines()[-1] for _ in range(2)}
    assert len(folders) == 2


def test_multirun_gives_every_job_its_folder(cli):
    ran = cli(*FAST, "-m", "overlap=none,future", "prompt='a'", "workload.limit=1")
    assert ran.code == 0
    configs = [read_run(path.parent)[0] for path in Path.cwd().rglob("run.json")]
    assert sorted((c["overlap"]["_target_"].rpartition(".")[2], c["prompt"]) for c in configs) == [
        ("OverlapLoop", "a"),
        ("SerialLoop", "a"),
    ]


def test_multirun_takes_a_text_with_commas_as_one(cli):
    assert cli(*FAST, "-m", "prompt=a, b").code == 0
    assert [read_run(path.parent)[0]["prompt"] for path in Path.cwd().rglob("run.json")] == ["a, b"]


@pytest.mark.parametrize("choice", ["model=local", "model=fake", "model=tiny"])
def test_a_wrong_model_path_is_one_problem(cli, choice):
    ran = cli(choice, "model.path=absent", "device=cpu")
    assert ran.code == 1
    assert ran.err.startswith("error: model.path=absent")
    assert ran.err.count("absent") == 1


def test_hydras_flags_pass_through(cli):
    shown = cli("--cfg", "job", "-p", "cache", "cache.page_size=4")
    assert yaml.safe_load(shown.out)["page_size"] == 4
    assert "searchpath" not in shown.out
    assert "file://" in cli("--info", "searchpath").out
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("arguments", [["--help"], ["task=explain"], ["task=explain", "task.format=json"]])
def test_help_and_explain_are_quick_write_nothing_and_import_no_torch(tmp_path, arguments):
    code = f"import sys; from engine.cli import main; c = main({arguments!r}); "
    code += "sys.exit(c or 'torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def once() -> float:
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        after = os.times()  # processor time: other work on the machine does not count against us
        used = after.children_user + after.children_system
        return used - before.children_user - before.children_system

    assert min(once() for _ in range(3)) < 1.0
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_does_not_import_torch(tmp_path):
    code = (
        "import sys; from engine.cli import main; main(['attention=nope']); sys.exit('torch' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=False).returncode == 0


def test_interrupt_before_the_task_is_exit_130(cli, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.cli.execute.compose_draft", press)
    ran = cli("prompt=hi")
    assert ran.code == INTERRUPTED
    assert "Traceback" not in ran.err


def test_first_ctrl_c_saves_what_there_is_and_exits_130(tmp_path):
    running = process(
        "model=tiny", "sampling.max_tokens=3000", "sampling.ignore_eos=true", "prompt=go", cwd=tmp_path
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("outputs.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == INTERRUPTED, err
    assert "Traceback" not in err
    folder = Path(out.splitlines()[-1])
    assert (folder / "result.json").is_file()


def test_closed_pipe_is_quiet(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    running = process(*FAST, "prompt=hi", cwd=tmp_path, stdout=writer)
    os.close(writer)
    err = running.communicate(timeout=60)[1]
    assert running.returncode == CLOSED_PIPE
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def in_shell(line: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m engine model=fake device=cpu threads=1 sampling.max_tokens=9 {line}"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, shell=True, cwd=cwd, env=variables, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("line", "encoding", "code", "words"),
    [
        ("prompt=hi >&- 2>&- <&-", "utf-8", 0, ""),
        ("prompt=hi > /dev/full", "utf-8", 1, "error: No space left on device"),
        ("prompt=é", "ascii", 0, ""),
        (r"prompt=- < bytes", "utf-8:strict", 1, "error: standard input (prompt=-) is not UTF-8 text"),
        (r"task=chat < bytes", "utf-8:strict", 0, "[that message is not UTF-8 text: it was left out]"),
    ],
)
def test_no_stream_ends_a_run_with_a_traceback(tmp_path, line, encoding, code, words):
    (tmp_path / "bytes").write_bytes(b"a\xffb\n")
    ran = in_shell(line, tmp_path, PYTHONIOENCODING=encoding)
    assert ran.returncode == code, ran.stderr
    assert ran.stderr.startswith(words)
    assert "Traceback" not in ran.stderr
    assert code or len(list(tmp_path.glob("outputs/*/*/result.json"))) == 1


def test_a_bug_keeps_its_traceback(monkeypatch):
    def bug(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("engine.cli.execute.compose_draft", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["prompt=hi"])


def test_simultaneous_starts_leave_distinct_folders(tmp_path):
    running = [process(*FAST, "prompt=hi", "hydra.run.dir=runs/x", cwd=tmp_path) for _ in range(3)]
    folders = {job.communicate(timeout=120)[0].splitlines()[-1] for job in running}
    assert len(folders) == 3
