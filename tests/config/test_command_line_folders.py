"""What a command line leaves: its run folder, named on the last line, with the snapshot that runs again."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from command_lines import FAST, process

from engine.runs import read_run


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
    ran = cli(*FAST, "-m", "overlap=none,future", "prompt='a'")
    assert ran.code == 0
    configs = [read_run(path.parent)[0] for path in Path.cwd().rglob("run.json")]
    assert sorted((c["overlap"]["_target_"].rpartition(".")[2], c["prompt"]) for c in configs) == [
        ("OverlapLoop", "a"),
        ("SerialLoop", "a"),
    ]


def test_multirun_takes_a_text_with_commas_as_one(cli):
    assert cli(*FAST, "-m", "prompt=a, b").code == 0
    assert [read_run(path.parent)[0]["prompt"] for path in Path.cwd().rglob("run.json")] == ["a, b"]


def test_simultaneous_starts_leave_distinct_folders(tmp_path):
    running = [process(*FAST, "prompt=hi", "hydra.run.dir=runs/x", cwd=tmp_path) for _ in range(3)]
    folders = {job.communicate(timeout=120)[0].splitlines()[-1] for job in running}
    assert len(folders) == 3
