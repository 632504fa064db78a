"""Figures that mislead alone never stand alone (field reports M2, M3, M4, M6, Y4)."""

from __future__ import annotations

import csv
import json

import pytest
from sweep_folders import bench, cell, write_job, write_sweep

from engine import report

ACCEPTED = (0.5, 0.25)


def pair_of(folder, base, other, **varied):
    cells = [cell({"spec": "none", **varied}), cell({"spec": "ngram", **varied})]
    write_sweep(folder, cells, baseline=["spec=none"])
    for one, result in zip(cells, (base, other), strict=True):
        write_job(folder, one, result)
    return report.write([folder])


def table(folder):
    return list(csv.DictReader((folder / "results.csv").read_text().splitlines()))


def test_m2_random_tokens_give_no_bare_speedup(tmp_path):
    """Even where the run itself did not warn; wherever the speed-up is printed."""
    page = pair_of(
        tmp_path,
        bench([100, 101, 102], representative=False),
        bench([150, 151, 152], accepted=ACCEPTED, representative=False),
    )
    summary, html = (tmp_path / "summary.md").read_text(), page.read_text()
    lines = [line for line in summary.splitlines() if "1.50x" in line or "1.49x" in line]
    assert len(lines) == 2  # the row, and the option's worth
    assert all("not representative" in line for line in lines)
    row = table(tmp_path)[1]
    assert (row["mark"], round(float(row["speedup"]), 2)) == ("not representative", 1.5)
    body = html[html.index("<main>") : html.index('<script type="application/json"')]
    for at in (place for place in range(len(body)) if body.startswith("1.50x", place)):
        assert "not representative" in body[at : at + 400]
    assert body.count("1.50x") >= 2


def test_m2_text_and_plain_decoding_need_no_mark(tmp_path):
    pair_of(tmp_path / "a", bench([100, 101, 102]), bench([150, 151, 152], accepted=ACCEPTED))
    assert "not representative" not in (tmp_path / "a/summary.md").read_text()
    pair_of(tmp_path / "b", bench([100], representative=False), bench([150], representative=False))
    assert "not representative" not in (tmp_path / "b/summary.md").read_text()


@pytest.mark.parametrize("word", ["simulated", "raw prompts"])
def test_other_claims_stand_beside_the_speedup(tmp_path, word):
    forced = bench([150, 151, 152], accepted=ACCEPTED, warnings=[f"{word}: so and so"])
    pair_of(tmp_path, bench([100, 101, 102]), forced)
    line = next(line for line in (tmp_path / "summary.md").read_text().splitlines() if "1.50x" in line)
    assert f"({word})" in line


@pytest.mark.parametrize(("share", "warned"), [(0.049, False), (0.051, True), (0.9, True)])
def test_m6_steps_outside_a_graph_are_a_warning_in_the_row(tmp_path, share, warned):
    page = pair_of(tmp_path, bench([100.0]), bench([100.0], eager_decode_share=share))
    for text in ((tmp_path / "summary.md").read_text(), page.read_text()):
        assert ("ran outside a graph" in text) == warned
    said = bench(
        [100.0], eager_decode_share=0.5, warnings=["50% of the decode steps ran outside a graph although"]
    )
    pair_of(tmp_path / "own", bench([100.0]), said)
    assert (tmp_path / "own/summary.md").read_text().count("outside a graph") == 1


def test_m4_accept_length_is_that_of_the_counted_runs(tmp_path):
    """Counters that a server summed up since it started (drafts of the warm-up, other runs) are not read."""
    result = bench([100.0, 100.0, 100.0], accepted=ACCEPTED)
    result["metrics"] = {**result["metrics"], "decode_tokens": 10**6, "decode_results": 10}
    result["spec"] = {**result["spec"], "emitted": 10**6}
    pair_of(tmp_path, bench([100.0]), result)
    assert float(table(tmp_path)[1]["accept_length"]) == pytest.approx(1.625)


def test_y4_host_waits_and_occupancy_stand_beside_the_speed(tmp_path):
    pair_of(tmp_path, bench([100.0]), bench([100.0], forward_occupancy=0.983))
    head = next(line for line in (tmp_path / "summary.md").read_text().splitlines() if "tokens/s" in line)
    columns = [column.strip() for column in head.split("|")]
    place = columns.index("output (tokens/s)")
    assert columns[place + 2 : place + 4] == ["host waits (per step)", "device busy (%)"]
    pair_of(tmp_path / "none", bench([100.0]), bench([100.0]))
    assert "device busy" not in (tmp_path / "none/summary.md").read_text()


def test_different_answers_are_said(tmp_path):
    cells = [cell({"attention": name}) for name in ("torch", "triton")]
    folder = write_sweep(tmp_path, cells)
    for one, verdict in zip(cells, ("pass", "different"), strict=True):
        write_job(folder, one, {"task": "verify", "verdict": verdict, "tokens_compared": 100})
    report.write([folder], page=False)
    lines = (folder / "summary.md").read_text().splitlines()
    assert ["differ from the reference" in line for line in lines if line.startswith(("| 1 ", "| 2 "))] == [
        False,
        True,
    ]


def test_m3_counts_come_from_token_ids(tmp_path, capsys):
    """A real run: the report's token count is that of the ids in outputs.jsonl, no re-tokenised text's."""
    from engine.cli import main

    folder = tmp_path / "run"
    line = ["task=bench", "model=tiny", "sampling.max_tokens=5", "task.repeats=1", "task.warmup=0"]
    assert main([*line, "workload.limit=2", "threads=1", f"hydra.run.dir={folder}"]) == 0
    report.write([folder], page=False)
    outputs = [json.loads(text) for text in (folder / "outputs.jsonl").read_text().splitlines()]
    ids = sum(len(answer["token_ids"]) for output in outputs for answer in output["completions"])
    row = table(folder)[0]
    assert int(float(row["output_tokens"])) == ids > 0
    seconds = json.loads((folder / "result.json").read_text())["seconds"]
    assert float(row["output_tokens_per_s"]) == pytest.approx(ids / seconds)
