"""What is compared with what: baselines in grids, other work, seeds, options against each other."""

from __future__ import annotations

import itertools

import pytest
from sweep_folders import bench, cell, write_job, write_sweep

from engine.report.reading import read_all
from engine.report.study import make_study

NOISE = (0.99, 1.0, 1.01)


def study_of(folder, speeds, *, baseline=None, chosen=None, failed=(), **more):
    """A study of cells (varied -> output tokens/s, three repeats each)."""
    cells = [cell(dict(varied)) for varied in speeds]
    write_sweep(folder, cells, baseline=baseline)
    for place, (one, speed) in enumerate(zip(cells, speeds.values(), strict=True)):
        if place in failed:
            write_job(folder, one, state="failed", reason="it broke")
        else:
            write_job(folder, one, bench([speed * factor for factor in NOISE], **more))
    return make_study(read_all([folder]), chosen)


def grid(**axes):
    return [tuple(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def found(study):
    return {number: (round(s.ratio.value, 3), s.base) for number, s in study.speedups.items()}


def test_each_row_has_the_baseline_of_its_own_surroundings(tmp_path):
    cells = grid(attention=("torch", "triton"), spec=("none", "ngram"))
    study = study_of(
        tmp_path / "s", dict(zip(cells, (100, 130, 200, 220), strict=True)), baseline=["spec=none"]
    )
    assert found(study) == {2: (1.3, 1), 4: (1.1, 3)}
    low, high = study.speedups[2].ratio.low, study.speedups[2].ratio.high
    assert 1.25 < low < 1.3 < high < 1.35


def test_one_cell_as_the_baseline_of_all(tmp_path):
    cells = grid(attention=("torch", "triton"), spec=("none", "ngram"))
    speeds = dict(zip(cells, (100, 130, 200, 220), strict=True))
    study = study_of(tmp_path / "s", speeds, baseline=["spec=none", "attention=torch"])
    assert found(study) == {2: (1.3, 1), 3: (2.0, 1), 4: (2.2, 1)}


def test_the_command_line_chooses_another_baseline(tmp_path):
    cells = grid(attention=("torch", "triton"), spec=("none", "ngram"))
    speeds = dict(zip(cells, (100, 130, 200, 220), strict=True))
    study = study_of(tmp_path / "s", speeds, baseline=["spec=none"], chosen=["attention=torch"])
    assert found(study) == {3: (2.0, 1), 4: (1.692, 2)}


def test_without_a_choice_the_first_options_are_the_baseline_and_work_stays_equal(tmp_path):
    cells = grid(spec=("none", "eagle3"), **{"task.concurrency": (1, 8)})
    study = study_of(tmp_path / "s", dict(zip(cells, (100, 500, 180, 600), strict=True)))
    assert found(study) == {3: (1.8, 1), 4: (1.2, 2)}
    assert study.baselines[0].values == {"spec": "none"}


def test_numbers_alone_are_compared_with_the_first(tmp_path):
    speeds = {(("cache.page_size", size),): speed for size, speed in ((1, 90), (16, 99), (64, 108))}
    assert found(study_of(tmp_path / "s", speeds)) == {2: (1.1, 1), 3: (1.2, 1)}


def test_settings_of_an_option_go_with_it(tmp_path):
    """spec.num_steps exists for eagle3 alone: its rows are compared with the one row without drafts."""
    cells = [(("spec", "none"),), *((("spec", "eagle3"), ("spec.num_steps", n)) for n in (2, 3))]
    study = study_of(tmp_path / "s", dict(zip(cells, (100, 150, 160), strict=True)), baseline=["spec=none"])
    assert found(study) == {2: (1.5, 1), 3: (1.6, 1)}
    effects = {(e.key, e.value): round(e.ratio.value, 3) for e in study.effects}
    assert effects == {
        ("spec", "eagle3"): round((1.5 * 1.6) ** 0.5, 3),
        ("spec.num_steps", 3): round(16 / 15, 3),
    }


def test_a_failed_baseline_leaves_its_rows_without_speedup(tmp_path):
    cells = grid(attention=("torch", "triton"), spec=("none", "ngram"))
    speeds = dict(zip(cells, (100, 130, 200, 220), strict=True))
    study = study_of(tmp_path / "s", speeds, baseline=["spec=none"], failed=(0,))
    assert found(study) == {4: (1.1, 3)}
    assert study.notes == []
    gone = study_of(tmp_path / "t", speeds, baseline=["spec=none"], failed=(0, 2))
    assert gone.speedups == {}
    assert "no finished cell has the baseline spec=none" in gone.notes[0]


def test_a_baseline_that_is_typed_otherwise_is_the_same(tmp_path):
    cells = grid(**{"spec.adaptive": (True, False)})
    speeds = dict(zip(cells, (100, 90), strict=True))
    assert found(study_of(tmp_path / "s", speeds, baseline=["spec.adaptive=True"])) == {2: (0.9, 1)}


def test_seeds_are_paired(tmp_path):
    """Speeds differ by seed far more than by drafts: pairs show the gain, which repeats alone would not."""
    cells = grid(spec=("none", "ngram"), seed=(1, 2, 3, 4))
    speeds = (100, 200, 50, 400, 121, 242, 60, 480)
    study = study_of(tmp_path / "s", dict(zip(cells, speeds, strict=True)), baseline=["spec=none"])
    assert {number: s.seeds for number, s in study.speedups.items()} == {5: 4, 6: 4, 7: 4, 8: 4}
    one = study.speedups[5].ratio
    assert one.value == pytest.approx((1.21 * 1.21 * 1.2 * 1.2) ** 0.25)
    assert 1.19 < one.low < one.high < 1.23
    assert study.speedups[8].base == 4


def test_two_seeds_claim_the_interval_of_their_repeats(tmp_path):
    cells = grid(spec=("none", "ngram"), seed=(1, 2))
    study = study_of(
        tmp_path / "s", dict(zip(cells, (100, 200, 120, 240), strict=True)), baseline=["spec=none"]
    )
    assert {number: s.seeds for number, s in study.speedups.items()} == {3: 0, 4: 0}


def test_what_an_option_is_worth_over_all_pairs(tmp_path):
    """B7: whether something should be on by default is read off one line."""
    cells = grid(pcg=("none", "piecewise"), attention=("torch", "triton"), spec=("none", "ngram"))
    speeds = [100, 110, 200, 220]
    slower = [speed * factor for speed, factor in zip(speeds, (0.96, 0.965, 0.96, 0.97), strict=True)]
    study = study_of(tmp_path / "s", dict(zip(cells, speeds + slower, strict=True)))
    effect = next(effect for effect in study.effects if effect.key == "pcg")
    assert (effect.value, effect.instead, effect.ratio.count) == ("piecewise", "none", 4)
    assert effect.ratio.high < 1
    assert effect.ratio.value == pytest.approx(0.9637, abs=1e-3)


def test_work_is_no_option(tmp_path):
    cells = grid(workload=("prompts", "random"), **{"sampling.max_tokens": (16, 64)})
    study = study_of(tmp_path / "s", dict(zip(cells, (1, 2, 3, 4), strict=True)))
    assert study.effects == []
    assert study.speedups == {}


def test_few_repeats_claim_nothing(tmp_path):
    cells = [cell({"spec": spec}) for spec in ("none", "ngram")]
    folder = write_sweep(tmp_path / "s", cells, baseline=["spec=none"])
    for one, speeds in zip(cells, ([100.0, 101.0], [150.0, 150.0]), strict=True):
        write_job(folder, one, bench(speeds))
    ratio = make_study(read_all([folder])).speedups[2].ratio
    assert ratio.value == pytest.approx(1.49, abs=0.01)
    assert (ratio.low, ratio.high) == (None, None)


def test_rows_are_ranked_by_what_was_asked_for(tmp_path):
    cells = [cell({"spec": spec}) for spec in ("none", "ngram", "eagle3")]
    folder = write_sweep(tmp_path / "s", cells, settings={"figure": "ttft_ms.p99", "better": "lower"})
    for one, ttft in zip(cells, (30.0, 10.0, 20.0), strict=True):
        write_job(folder, one, bench([100.0], ttft=ttft))
    study = make_study(read_all([folder]))
    assert [row.number for row in study.ranked] == [2, 3, 1]
    assert study.figures[0].key == "ttft_ms_p99"


def test_accuracy_leads_where_it_was_measured(tmp_path):
    cells = [cell({"spec": spec}) for spec in ("none", "ngram")]
    folder = write_sweep(tmp_path / "s", cells)
    for one, accuracy in zip(cells, (0.25, 0.5), strict=True):
        ends = {"accuracy_low": accuracy - 0.1, "accuracy_high": accuracy + 0.1}
        write_job(folder, one, {"task": "eval", "accuracy": accuracy, "output_tokens_per_s": 9.0, **ends})
    study = make_study(read_all([folder]))
    assert [row.number for row in study.ranked] == [2, 1]
    assert study.leading.interval(study.ranked[0].result) == pytest.approx((40.0, 60.0))
