"""Cells that Optuna chooses: from results, around what the rules reject, the same again when gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_cases import CRASH, manifest, states

from engine.runs import write_json
from engine.sweeps.folder import STOP, SweepFolder
from engine.sweeps.states import JobState
from engine.sweeps.study import Study

pytest.importorskip("optuna", reason="pip install 'syncless[search]'")
pytestmark = pytest.mark.usefixtures("no_report")

SIZES = ",".join(str(2**n) for n in range(10))
SPACE = ("-m", "model=tiny", "device=cpu", f"cache.page_size={SIZES}", "scheduler.max_running=range(1,31)")


@pytest.fixture
def launched(monkeypatch):
    """Jobs that end at once with a figure whose best place is page_size=32, max_running=20; what was run."""
    ran: list[list[str]] = []
    stop_after: list[int] = []

    def launch(self, directory, cell_ids, task):
        folder = SweepFolder(Path(directory))
        ran.append(list(cell_ids))
        for cell_id in cell_ids:
            given = dict(line.split("=", 1) for line in task.overrides[cell_id])
            size = int(given.get("cache.page_size", 0))
            running = int(given.get("scheduler.max_running", 0))
            folder.clear(cell_id)
            write_json(folder.job(cell_id) / "result.json", {"speed": -abs(size - 32) - abs(running - 20)})
            folder.write_state(JobState(cell_id, "finished", None, 0, 1.0, "then", f"now {cell_id}"))
        if stop_after and len(ran) == stop_after[0]:
            folder.ask(STOP)

    monkeypatch.setattr("engine.sweeps.launch.LaunchPlan.launch", launch)
    launch.ran, launch.stop_after = ran, stop_after
    return launch


def speeds(folder: Path) -> list[float]:
    sweep = SweepFolder(folder)
    ids = [cell["id"] for cell in manifest(folder)["cells"] if cell["verdict"] == "ok"]
    return [sweep.result(cell_id)["speed"] for cell_id in ids]


def test_it_runs_as_many_jobs_as_asked_and_comes_close_to_the_best(cli, launched):
    ran = cli(*SPACE, "sweep.trials=20", "sweep.figure=speed")
    assert ran.code == 0
    assert len(speeds(ran.folder)) == 20
    assert max(speeds(ran.folder)) > -12, "of 300 cells the best are at 0; a random one is at -110 on average"
    assert sum(speeds(ran.folder)[10:]) > sum(speeds(ran.folder)[:10]), "it learns"
    assert set(manifest(ran.folder)["cells"][0]["varied"]) == {"cache.page_size", "scheduler.max_running"}


def test_a_cell_beside_the_search_is_told_from_the_others(cli, launched, monkeypatch):
    study = Study(
        Study.Config(overrides=SPACE[1:], extra=(("overlap=none",),), trials=3, figure="speed"), "own"
    )
    monkeypatch.setattr("engine.sweeps.sweep.load_study", lambda *_: study)
    ran = cli("-m")
    beside, *chosen = [cell["varied"] for cell in manifest(ran.folder)["cells"]]
    assert beside["overlap"] == "none"
    assert [cell["overlap"] for cell in chosen] == ["future"] * 3
    assert all(len(cell) == 3 for cell in chosen)


def test_lower_can_be_better(cli, launched):
    ran = cli(*SPACE, "sweep.trials=12", "sweep.figure=speed", "sweep.better=lower")
    assert min(speeds(ran.folder)) < -450


def test_interrupted_and_gone_on_with_it_chooses_the_same(cli, launched):
    line = (*SPACE, "sweep.trials=8", "sweep.figure=speed", "sweep.seed=3")
    whole = cli(*line)
    launched.ran.clear()
    launched.stop_after.append(5)
    half = cli(*line)
    assert half.code == 1
    launched.stop_after.clear()
    launched.ran.clear()
    rest = cli(f"resume={half.folder}")
    assert rest.code == 0
    assert len(launched.ran) == 8 - 5, "those that had run are not run again"
    ids = [[cell["id"] for cell in manifest(folder)["cells"]] for folder in (whole.folder, half.folder)]
    assert ids[0] == ids[1]


def test_what_the_rules_reject_is_a_row_and_no_trial(cli, launched):
    space = (*SPACE[:3], "cache.page_size=-1,8,0,32,-2", "scheduler.max_running=range(1,31)")
    ran = cli(*space, "sweep.trials=8", "sweep.figure=speed")
    assert list(states(ran.folder).values()).count("finished") == 8
    assert "rejected" in states(ran.folder).values()


def test_several_at_a_time(cli, launched):
    ran = cli(*SPACE, "sweep.trials=9", "sweep.batch=4", "sweep.figure=speed")
    assert len(speeds(ran.folder)) == 9
    assert {len(batch) for batch in launched.ran} >= {4, 1}


def test_a_space_smaller_than_the_trials_is_a_grid(cli, launched):
    ran = cli(*SPACE[:3], "cache.page_size=8,16", "scheduler.max_running=1,2", "sweep.trials=9")
    assert len(states(ran.folder)) == 4
    assert launched.ran == [[cell["id"] for cell in manifest(ran.folder)["cells"]]]


def test_nothing_starts_where_no_cell_can_run(cli, launched, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.sweeps.search.LOOKED_AT", 5)
    ran = cli(*SPACE, "+cache.page_siez=3", "sweep.trials=9")
    assert ran.code == 1
    assert "did you mean page_size?" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_that_the_cells_are_not_known_yet(cli, tmp_path):
    ran = cli(*SPACE, "sweep.trials=9", "--dry-run")
    assert (ran.code, ran.out) == (0, "9 cells are chosen while the sweep runs (sweep.trials)\n")
    assert list(tmp_path.iterdir()) == []


def test_real_jobs_without_a_figure_do_not_end_the_search(cli):
    ran = cli("-m", *CRASH, "cache.page_size=8,16,32", "sweep.trials=2")
    assert list(states(ran.folder).values()) == ["killed", "killed"]
    assert ran.code == 1
