"""The files: complete, quick, escaped, repeatable; and what happens without the optional libraries."""

from __future__ import annotations

import csv
import html
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweep_folders import bench, cell, write_job, write_sweep

from engine import report
from engine.compose import compose_draft
from engine.errors import UserError
from engine.report.command import main
from engine.report.tables import csv_text

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "</script><script>window.hit=2</script>"
NASTY = f"""<img src=x onerror="window.hit=1"> '"` | {SCRIPT} \\ *a* _b_ &amp; [l](u)"""


def sample(folder, **more):
    cells = [cell({"spec": spec, "prompt": prompt}) for spec in ("none", "ngram") for prompt in ("a", NASTY)]
    cells.append(cell({"spec": "eagle3", "prompt": "a"}, reason=f"spec=eagle3: {NASTY}\nand a second line"))
    cells.append(cell({"spec": "eagle3", "prompt": NASTY}))
    write_sweep(folder, cells, baseline=["spec=none"], study=f"study {NASTY}", **more)
    for n, one in enumerate(cells[:4]):
        warned = {"warnings": [f"a warning {NASTY}"]} if n == 3 else {}
        write_job(
            folder, one, bench([100.0 + n, 101.0 + n, 102.0 + n], accepted=(0.5,) if n > 1 else (), **warned)
        )
    write_job(folder, cells[5], state="out_of_memory", reason=f"out of memory {NASTY}", log="the log")
    return folder


def without(monkeypatch, library):
    """As if the library were not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == library else real(name, *rest)
    )


def test_summary_has_every_row_best_first_and_reasons_below(tmp_path):
    report.write([sample(tmp_path)], page=False)
    text = (tmp_path / "summary.md").read_text()
    numbers = [int(found) for found in re.findall(r"^\| (\d+) \|", text, re.M)]
    assert numbers == [4, 3, 2, 1, 5, 6]
    assert "4 finished, 1 out of memory, 1 rejected" in text
    assert text.index("Rejected, failed and open") < text.index("and a second line")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines[:6]}) == 1  # no text breaks the table
    assert "<img" not in text.replace("\\<img", "").split("## The command of each row")[0]


def test_csv_is_complete_exact_and_says_units(tmp_path):
    report.write([sample(tmp_path)], page=False)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert [row["number"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert [row["state"] for row in rows] == ["finished"] * 4 + ["rejected", "out of memory"]
    assert float(rows[0]["output_tokens_per_s"]) == 101.0
    assert float(rows[0]["ttft_ms_p99"]) == pytest.approx(2.1 * 20 * 100 / 101, rel=1e-15)
    assert rows[1]["choice.prompt"] == NASTY
    assert rows[4]["reason"] == f"spec=eagle3: {NASTY}\nand a second line"
    assert rows[4]["output_tokens_per_s"] == ""
    assert float(rows[2]["speedup_low"]) < float(rows[2]["speedup"]) < float(rows[2]["speedup_high"])


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "=HYPERLINK('x')"])
def test_text_that_a_spreadsheet_would_compute_is_made_inert(text):
    """A prompt or a reason is anybody's; OWASP: an apostrophe in front."""
    written = csv_text([{"prompt": text, "next": 1}])
    (row,) = csv.DictReader(io.StringIO(written, newline=""))
    assert row == {"prompt": "'" + text.replace("\r", "\n"), "next": "1"}


@pytest.mark.parametrize("value", [-1.5, -3, "-3", "+0.5", "-1e-3", "a=b", "'-", "", None])
def test_numbers_and_plain_text_stay_as_they_are_in_the_csv(value):
    found = next(csv.DictReader(io.StringIO(csv_text([{"a": value, "b": 1}]))))["a"]
    assert found == ("" if value is None else str(value))


def test_parquet_holds_the_same(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    report.write([sample(tmp_path)], page=False)
    table = parquet.read_table(tmp_path / "results.parquet").to_pylist()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert list(table[0]) == list(rows[0])
    assert [row["output_tokens_per_s"] for row in table[:2]] == [101.0, 102.0]
    assert table[4]["output_tokens_per_s"] is None


def test_without_pyarrow_there_is_no_parquet_and_no_complaint(tmp_path, monkeypatch):
    without(monkeypatch, "pyarrow")
    report.write([sample(tmp_path)], page=False)
    assert not (tmp_path / "results.parquet").exists()
    assert (tmp_path / "results.csv").exists()


def test_without_plotly_the_page_is_refused_and_the_rest_is_written(tmp_path, monkeypatch, capsys):
    without(monkeypatch, "plotly")
    with pytest.raises(UserError, match="pip install plotly"):
        report.write([sample(tmp_path)])
    assert "4 finished" in (tmp_path / "summary.md").read_text()
    assert "report.html needs the plotting library plotly" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "results.csv").exists()
    assert not (tmp_path / "report.html").exists()
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: report.html needs")


def test_text_is_escaped_in_the_page(tmp_path):
    """Nothing of what configs, rules and logs say becomes markup or ends a script."""
    page = report.write([sample(tmp_path)]).read_text()
    own = page[: page.index('<script type="application/json"')]
    assert "<img" not in page
    assert html.escape("<img src=x", quote=False) in own
    assert "window.hit=2</script>" not in page
    figures = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    assert json.loads(figures[1])  # the element ends where the JSON does
    assert len(re.findall(r"<script\b", own)) == 1


def test_the_page_asks_for_nothing(tmp_path):
    """Self-contained: no address to load from, and a policy that forbids it."""
    page = report.write([sample(tmp_path)]).read_text()
    before = page[: page.index("</main>")]
    assert not re.findall(r"(?:src|href)=\"(?!#)", before)
    assert "default-src 'none'" in before


def test_a_command_repeats_its_row(tmp_path):
    """What the report prints, read by a shell, composes to the row's own config, with the seed it drew."""
    typed = [
        "model=tiny",
        "task=bench",
        "spec=ngram",
        "sampling.max_tokens=7",
        'prompt=It\'s 50% "so", ${x} & $y!',
    ]
    config = compose_draft(typed).resolved
    one = {**cell({}), "overrides": list(config.overrides)}
    folder = write_sweep(tmp_path, [one])
    write_job(folder, one, bench([1.0]))
    report.write([folder])
    command = next(csv.DictReader((folder / "results.csv").open()))["command"]
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "engine"]
    again = compose_draft(words[3:]).resolved.cfg
    assert again == {**config.cfg, "seed": 7}
    for text in ((folder / "summary.md").read_text(), html.unescape((folder / "report.html").read_text())):
        assert command in text


def test_a_hundred_rows_take_no_time(tmp_path):
    cells = [cell({"task.concurrency": n, "spec": spec}) for n in range(50) for spec in ("none", "ngram")]
    folder = write_sweep(tmp_path, cells, baseline=["spec=none"])
    for n, one in enumerate(cells):
        write_job(folder, one, bench([100.0 + n] * 3))
    report.write([folder], page=False)
    start = time.process_time()
    report.write([folder], page=False)
    assert time.process_time() - start < 0.3


def test_neither_torch_nor_plotly_is_imported_without_the_page(tmp_path):
    code = (
        "import sys; from pathlib import Path; from engine import report; "
        f"report.write([Path({str(sample(tmp_path))!r})], page=False); "
        "print(sorted({'torch', 'plotly', 'jinja2', 'numpy.linalg'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.strip()
    assert "torch" not in loaded
    assert "plotly" not in loaded
    assert "jinja2" not in loaded


def test_the_command_line(tmp_path, capsys):
    folder = sample(tmp_path / "s")
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert main([str(folder), "--no-page", "--out", str(tmp_path / "o"), "--baseline", "spec=ngram"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "o" / "summary.md")
    assert "over spec=ngram" in (tmp_path / "o" / "summary.md").read_text()
    assert not (tmp_path / "o" / "report.html").exists()
    assert main([str(tmp_path / "nowhere")]) == 1
    assert "is no folder" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the report"):
        report.write([sample(tmp_path / "s")], out=tmp_path / "file")


def test_settings_that_never_vary_stand_apart(tmp_path):
    page = report.write([sample(tmp_path)]).read_text()
    head = page[page.index("<thead>") : page.index("</thead>")]
    assert ">spec<" in head
    assert "cache" not in head
    assert "cache</i>=radix" in page[: page.index("<thead>")]


def test_no_partial_file_is_left(tmp_path):
    report.write([sample(tmp_path)])
    names = {path.name for path in tmp_path.iterdir()}
    assert names - {"results.parquet"} == {"jobs", "sweep.json", "summary.md", "results.csv", "report.html"}


def test_an_evaluation_shows_its_interval_and_its_paired_comparison(tmp_path):
    folder = write_sweep(tmp_path, [one := cell({"spec": "none"})])
    pair = {"only_this": 9, "only_other": 2, "difference": 0.07, "p_value": 0.0654}
    against = {"name": "plain", "identical_answers": 89, "pairs": {"exact_match": pair, "loose": None}}
    ends = {"accuracy_low": 0.31, "accuracy_high": 0.512}
    write_job(folder, one, {"task": "eval", "accuracy": 0.41, "questions": 100, "against": against, **ends})
    page = report.write([folder]).read_text()
    assert "41.0 [31.0, 51.2]" in (folder / "summary.md").read_text().replace("\\", "")
    assert "+7.0 points (McNemar, p = 0.0654)" in page


def test_the_baseline_is_named_in_its_row(tmp_path):
    report.write([sample(tmp_path)], page=False)
    lines = [re.split(r"(?<!\\)\|", line) for line in (tmp_path / "summary.md").read_text().splitlines()]
    table = [line for line in lines if len(line) > 10]
    place = [name.strip() for name in table[0]].index("speed-up")
    words = {line[1].strip(): line[place].strip() for line in table[2:6]}
    assert (words["1"], words["2"]) == ("baseline", "baseline")
    assert words["3"].startswith("1.02x")
