"""Fixtures of reports: run folders as the engine leaves them, and a browser where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from chromium import Page, chromium, find_chromium
from sweep_folders import bench

from engine.compose import compose_draft
from engine.runs import create_run


@pytest.fixture
def run_folder() -> Callable[[Path, Sequence[str], Sequence[float]], Path]:
    """Make the folder of a single run with these overrides; its repeats ran at these speeds."""

    def make(path: Path, overrides: Sequence[str], speeds: Sequence[float]) -> Path:
        resolved = compose_draft(["task=bench", "model=tiny", *overrides]).resolved
        run = create_run(path, resolved.cfg, resolved.overrides, resolved.hydra)
        run.write_result(bench(speeds))
        return run.path

    return make


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    """A headless Chromium; tests that need one say so and are skipped without."""
    binary = find_chromium()
    if binary is None:
        pytest.skip("no Chromium on this machine: the page is not looked at")
    with chromium(binary) as page:
        yield page
