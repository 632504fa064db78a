"""README and docs point at things that exist, and the examples are clean code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if link]
    missing = [link for link in links if not (page.parent / link).exists()]
    made = set(re.findall(r"^`([\w/.]+)`\n\n```", text, re.M))  # files that the page tells to write
    paths = set(
        re.findall(r"`((?:engine|backends|speculative|kernels|conf|docs|tools|benchmarks)/[\w/.]*)`", text)
    )
    missing += [path for path in paths - made if not (ROOT / path).exists()]
    assert missing == []
    assert links or paths or page.name == "results.md"


def test_examples_pass_the_linter(tmp_path: Path) -> None:
    page = (ROOT / "docs/adding.md").read_text()
    for name, code in re.findall(r"^`([\w/.]+\.py)`\n\n```python\n(.*?)^```", page, re.M | re.S):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--ignore",
        "I",
        "--config",
        str(ROOT / "pyproject.toml"),
        ".",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"^`[\w/.]+\.py`\n\n```python", page, re.M)) == 3
