"""The page in a real browser: nothing clipped, covered or too wide; sorting, filters and themes work."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from sweep_folders import bench, cell, write_job, write_sweep

from engine import report

PROBE = (Path(__file__).parent / "probe.js").read_text()
DRAWN = "document.documentElement.dataset.drawn === 'yes'"
DESKTOP, PHONE = (1440, 900), (390, 844)
LONG = "Write a haiku about the sea, the wind and an unbelievably_long_word_without_any_break_at_all_in_it!"
MARKUP = "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
REASON = (
    "attention=torch and graph=step: the backend reads the bound on the host, so no graph can hold it. " * 5
)
AXES = {
    "attention": ("torch", "triton"),
    "spec": ("none", "eagle3"),
    "overlap": ("none", "future"),
    "graph": ("none", "step"),
    "tbo": ("none", "two_batch"),
}


def crowded(folder: Path, factor: float = 1.0) -> Path:
    """Forty rows, twelve varied keys and more, long prompts and reasons, every state."""
    cells = []
    for n, values in enumerate(itertools.product(*AXES.values())):
        varied = dict(zip(AXES, values, strict=True)) | {
            "pcg": ("none", "piecewise")[n % 2],
            "cache.page_size": (1, 16, 64)[n % 3],
            "scheduler.max_running": (8, 64)[n % 2],
            "scheduler.chunk_tokens": (512, 2048)[n % 2],
            "sampling.temperature": (0.0, 0.8)[n // 2 % 2],
            "task.concurrency": (1, 8, 32, 64)[n % 4],
            "prompt": (LONG, MARKUP)[n % 2],
        }
        cells.append(cell(varied, reason=REASON if n % 11 == 3 else None))
    cells += [cell({**cells[n]["varied"], "sampling.temperature": 1.0 + n / 10}) for n in range(8)]
    write_sweep(folder, cells, baseline=["spec=none"], study=f"a rather long name & {MARKUP}")
    for n, one in enumerate(cells):
        if one["verdict"] == "ok" and n != 38:
            _job(folder, one, n, factor)
    return folder


def _job(folder: Path, one: dict, n: int, factor: float) -> None:
    if n % 9 == 4:
        state = ("out_of_memory", "killed", "timeout", "failed")[n % 4]
        write_job(folder, one, state=state, reason=f"CUDA out of memory {'x' * 200}", log="the end")
        return
    drafts = one["varied"]["spec"] == "eagle3"
    speed = factor * (100 + 37 * n) * (1.5 if drafts else 1)
    result = bench(
        [speed, speed * 1.02, speed * 0.99],
        ttft=2000 / speed,
        itl=1000 / speed + n % 5,
        accepted=(0.8, 0.6, 0.4)[: 1 + n % 3] if drafts else (),
        representative=n % 2 == 0,
        eager_decode_share=0.3 if n % 7 == 0 else 0.0,
        forward_occupancy=0.98,
    )
    write_job(folder, one, result)


def small(folder: Path) -> Path:
    """A grid of two keys with a rejected field: heat map, load curves and speed-ups."""
    cells = []
    for spec, load in itertools.product(("none", "ngram", "eagle3"), (1, 8, 64)):
        bad = spec == "eagle3" and load == 64
        cells.append(cell({"spec": spec, "task.concurrency": load}, reason="no room" if bad else None))
    write_sweep(folder, cells, baseline=["spec=none"])
    for n, one in enumerate(cells[:-1]):
        speed = 100.0 * (n + 1)
        result = bench([speed, speed * 1.01, speed * 0.98], itl=9.0 - n, accepted=(0.5,) if n > 2 else ())
        write_job(folder, one, result)
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """A page of each kind."""
    root = tmp_path_factory.mktemp("pages")
    one, other = crowded(root / "one"), crowded(root / "other", factor=0.8)
    return {
        "crowded": report.write([one]),
        "compared": report.write([one, other], out=root / "both"),
        "small": report.write([small(root / "small")]),
        "empty": report.write(
            [write_sweep(root / "empty", [cell({"spec": "none"}), cell({"spec": "ngram"})])]
        ),
    }


def show(browser, page: Path, size: tuple[int, int], *, dark: bool = False) -> None:
    browser.complaints.clear()
    browser.requests.clear()
    browser.look(*size, dark=dark)
    browser.open(page)
    browser.wait(DRAWN)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("kind", ["crowded", "small", "empty"])
def test_nothing_is_clipped_covered_or_wide(browser, pages, kind, size):
    """As it opens, with everything unfolded, and when the system turns dark."""
    show(browser, pages[kind], size)
    assert browser.run(PROBE) == []
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    browser.run("[...document.querySelectorAll('.more')].slice(0, 3).forEach((b) => b.click())")
    assert browser.run(PROBE) == []
    browser.run("delete document.documentElement.dataset.drawn")
    browser.look(*size, dark=True)
    browser.wait(DRAWN)
    assert browser.run(PROBE) == []
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    assert browser.run("window.hit === undefined")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_sweeps_side_by_side_fit_too(browser, pages, size):
    show(browser, pages["compared"], size)
    assert browser.run(PROBE) == []
    assert "worse" in browser.run("document.getElementById('comparison').innerText")


def test_the_probe_sees_what_is_broken(browser, tmp_path):
    """Each kind of damage, one at a time."""
    damages = {
        "scrolls sideways": "<div style='width:3000px'>wide</div>",
        "cut off": "<div style='width:40px;overflow:hidden;white-space:nowrap'>a text that goes on</div>",
        "on each other": "<div style='height:0'>one text</div><div>other text</div>",
        "outside the window": "<div style='position:absolute;left:-60px'>outside the window</div>",
    }
    for said, markup in damages.items():
        page = tmp_path / "page.html"
        page.write_text(f"<!doctype html><meta charset=utf-8><body>{markup}</body>")
        browser.look(*DESKTOP, dark=False)
        browser.open(page)
        assert any(said in line for line in browser.run(PROBE)), said


def enter(browser, where: str, value: str, event: str) -> None:
    """As a user types or chooses."""
    browser.run(
        f"(() => {{ const e = {where}; e.value = '{value}'; e.dispatchEvent(new Event('{event}')); }})()"
    )


def numbers(browser) -> list[int]:
    script = (
        "[...document.querySelectorAll('#rows tbody:not([hidden]) th')].map((c) => parseInt(c.innerText))"
    )
    return browser.run(script)


def test_the_table_sorts_by_every_column(browser, pages):
    show(browser, pages["small"], DESKTOP)
    assert numbers(browser) == [8, 7, 6, 5, 4, 3, 2, 1]  # by speed
    browser.run("document.querySelectorAll('#rows thead button')[0].click()")
    assert numbers(browser) == [1, 2, 3, 4, 5, 6, 7, 8]
    browser.run("document.querySelectorAll('#rows thead button')[2].click()")  # requests in flight, up
    assert numbers(browser) == [1, 4, 7, 2, 5, 8, 3, 6]
    assert browser.run("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "ascending"
    browser.run("document.getElementById('turn').click()")
    assert numbers(browser)[:2] == [3, 6]
    titles = "[...document.getElementById('sort').options].map((option) => option.text)"
    place = next(n for n, text in enumerate(browser.run(titles)) if "speed-up" in text)
    browser.run(f"document.querySelectorAll('#rows thead button')[{place}].click()")
    assert set(numbers(browser)[-3:]) == {1, 2, 3}  # rows without one are last, up or down
    browser.run("document.getElementById('turn').click()")
    assert set(numbers(browser)[-3:]) == {1, 2, 3}


def test_the_table_filters(browser, pages):
    show(browser, pages["small"], PHONE)
    enter(browser, "document.querySelector('[data-facet]')", "ngram", "change")
    assert sorted(numbers(browser)) == [4, 5, 6]
    assert browser.run("document.getElementById('count').value") == "3 of 8 rows"
    enter(browser, "document.getElementById('filter')", "500", "input")
    assert numbers(browser) == [5]
    browser.run("document.getElementById('clear').click()")
    assert len(numbers(browser)) == 8


def test_details_hold_the_command(browser, pages):
    show(browser, pages["small"], DESKTOP)
    visible = "document.querySelector('#rows .detail').checkVisibility()"
    assert not browser.run(visible)
    browser.run("document.querySelector('#rows .more').click()")
    assert browser.run(visible)
    assert "python -m engine task=bench" in browser.run("document.querySelector('#rows .detail').innerText")


def test_the_switch_overrules_the_system(browser, pages):
    back = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.xtick text')).fill"
    seen = {}
    for dark in (False, True):
        show(browser, pages["small"], DESKTOP, dark=dark)
        seen[dark] = browser.run(f"[{back}, {ink}]")
    assert seen[False][0] != seen[True][0]
    assert seen[False][1] != seen[True][1]
    enter(browser, "document.getElementById('theme')", "light", "change")
    assert browser.run(f"[{back}, {ink}]") == seen[False]
    show(browser, pages["small"], DESKTOP, dark=True)
    assert browser.run(f"[{back}, {ink}]") == seen[False]  # remembered
    browser.run("localStorage.clear()")


def test_without_scripts_the_rows_are_all_there(pages):
    text = pages["crowded"].read_text()
    table = text[text.index('<table id="rows"') : text.index('<section id="plots"')]
    assert len(re.findall(r"<tbody", table)) == 32


def luminance(color: str) -> float:
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_text_and_marks_have_contrast_in_both_themes():
    """WCAG 2.2: 4.5 for text, 3 for graphics."""
    css = (Path(report.__file__).parent / "assets" / "page.css").read_text()
    blocks = re.findall(r"\{([^{}]*--back:[^{}]*)\}", css)
    themes = [dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})", block)) for block in blocks]
    assert len(themes) == 3
    assert themes[1] == themes[2]  # chosen by the system and by the switch
    for theme in themes:
        for text in ("--text", "--muted", "--link"):
            for back in ("--back", "--soft", "--flag-back"):
                assert contrast(theme[text], theme[back]) >= 4.5, (text, back)
        for back in ("--heat0", "--heat1"):  # numbers in the fields of the heat map
            assert contrast(theme["--text"], theme[back]) >= 4.5, back
        assert contrast(theme["--mark-text"], theme["--mark-back"]) >= 4.5
        for n in range(8):
            assert contrast(theme[f"--c{n}"], theme["--back"]) >= 3, n
