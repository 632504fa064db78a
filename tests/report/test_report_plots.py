"""Plots: valid plotly figures, there only where their data are, with values that are those of the rows."""

from __future__ import annotations

import itertools
import json
from typing import Any

import plotly.graph_objects as go
import pytest
from sweep_folders import bench, cell, write_job, write_sweep

from engine.report.numbers import duration, moment, number
from engine.report.plots import plots
from engine.report.plots.speed import pareto_front
from engine.report.reading import read_all
from engine.report.study import make_study

STAND_INS = {"$heat": [[0, "#000000"], [1, "#ffffff"]]}


def study_of(folder, entries, **more):
    """entries: (varied, result or None: rejected)."""
    cells = [cell(varied, reason=None if result else "it cannot work") for varied, result in entries]
    write_sweep(folder, cells, **more)
    for one, (_, result) in zip(cells, entries, strict=True):
        if result:
            write_job(folder, one, result)
    return make_study(read_all([folder]))


def grid_study(folder):
    entries = []
    for n, (attention, spec, load) in enumerate(
        itertools.product(("torch", "triton"), ("none", "ngram"), (1, 8, 64))
    ):
        speed = 100.0 + 40 * n
        result = bench(
            [speed, speed * 1.01, speed * 0.99], itl=20 - n, accepted=(0.6, 0.3) if spec == "ngram" else ()
        )
        varied = {"attention": attention, "spec": spec, "task.concurrency": load}
        entries.append((varied, None if n == 4 else result))
    return study_of(folder, entries, baseline=["spec=none"])


def painted(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        return STAND_INS.get(value, "#123456")
    if isinstance(value, dict):
        return {key: painted(item) for key, item in value.items()}
    return [painted(item) for item in value] if isinstance(value, list) else value


def test_all_plots_of_a_full_grid_are_valid(tmp_path):
    found = {plot.id: plot for plot in plots(grid_study(tmp_path))}
    assert set(found) == {
        "speed",
        "load",
        "pareto",
        "grid",
        "ttft",
        "itl",
        "e2e",
        "accept",
        "positions",
        "steps",
    }
    for plot in found.values():
        figure = json.loads(json.dumps(plot.figure()))
        go.Figure(painted(figure["data"]), painted(figure["layout"]))  # raises for an unknown property
        assert plot.title
        assert plot.caption.endswith(".")


def test_plots_appear_only_where_their_data_exist(tmp_path):
    plain = study_of(tmp_path / "a", [({"spec": "none"}, bench([100.0]))])
    assert {plot.id for plot in plots(plain)} == {"speed", "ttft", "itl", "e2e"}
    verify = {"task": "verify", "verdict": "pass", "tokens_compared": 10}
    assert plots(study_of(tmp_path / "b", [({"spec": "none"}, verify), ({"spec": "ngram"}, verify)])) == []
    assert plots(study_of(tmp_path / "c", [({"spec": "none"}, None)])) == []


def test_values_are_those_of_the_rows(tmp_path):
    study = grid_study(tmp_path)
    found = {plot.id: plot for plot in plots(study)}
    best = study.ranked[0]
    speed = found["speed"].data[0]
    assert (speed["y"][0], speed["x"][0]) == (f"#{best.number}", best.result["output_tokens_per_s"])
    assert speed["error_x"]["array"][0] == pytest.approx(0.01 * speed["x"][0])
    stages = [trace for trace in found["steps"].data if trace["x"][0] is not None]
    total = sum(trace["x"][0] for trace in stages)
    assert total == pytest.approx(best.result["decode_step_ms"])
    line = found["load"].data[0]
    assert line["x"] == [1, 8, 64]
    assert line["y"] == sorted(line["y"])
    depths = found["positions"].data[0]
    assert (depths["x"], depths["y"]) == ([1, 2], pytest.approx([60.0, 30.0]))


def test_the_heat_map_says_why_a_field_is_empty(tmp_path):
    known, unknown = {plot.id: plot for plot in plots(grid_study(tmp_path))}["grid"].data
    texts = [text for line in known["text"] for text in line]
    words = [text for line in unknown["text"] for text in line]
    assert sorted(filter(None, words)) == ["rejected"]
    place = words.index("rejected")
    assert texts[place] == ""
    assert sum(map(bool, texts)) == 11
    assert "it cannot work" in [text for line in unknown["hovertext"] for text in line][place]


def test_the_front_is_what_nothing_beats(tmp_path):
    study = grid_study(tmp_path)
    front = pareto_front(list(study.ranked))
    for row in study.ranked:
        beaten = any(
            other.result["output_tokens_per_s"] >= row.result["output_tokens_per_s"]
            and other.result["itl_ms"]["p50"] <= row.result["itl_ms"]["p50"]
            and other is not row
            for other in study.ranked
        )
        assert (row in front) != beaten


def test_lines_differ_without_their_colours(tmp_path):
    traces = next(plot for plot in plots(grid_study(tmp_path)) if plot.id == "load").data
    looks = {(trace["line"]["dash"], trace["marker"]["symbol"]) for trace in traces}
    assert len(looks) == len(traces) > 2


def test_text_in_plots_is_no_markup(tmp_path):
    entries = [
        ({"prompt": f"<b>{n}</b>", "task.concurrency": load}, bench([9.0])) for n in (1, 2) for load in (1, 2)
    ]
    for plot in plots(study_of(tmp_path, entries)):
        assert "<b>" not in json.dumps(plot.figure()["data"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1134.5, "1,130"), (0.0625, "0.0625"), (9.996, "10.0"), (999.6, "1,000"), (24.0, "24.0"),
        (1.0, "1.00"), (0, "0"), (0.0, "0"), (128, "128"), (544_000, "544,000"),
        (1e-9, "1.00e-09"), (123456.0, "123,000"),
        (-3.14159, "-3.14"), (None, "-"), ("pass", "pass"),
    ],
)  # fmt: skip
def test_three_significant_digits(value, text):
    assert number(value) == text


def test_times_are_readable():
    assert [duration(s) for s in (None, 4.214, 192.0, 7500.0)] == ["-", "4.21 s", "3 min 12 s", "2 h 5 min"]
    assert moment("2026-11-29T23:10:00.123+00:00") == "2026-11-29 23:10+00:00"
    assert moment("yesterday") == "yesterday"
