"""What a card draws, as a driver's tool tells it: its answers, its silence, its absence."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.decode import power
from benchmarks.power import Meter, Power, command, settled

CARD = torch.device("cuda")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an nvidia-smi may be put; no other is found."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="0a1b"))
    return tmp_path / "nvidia-smi"


def write(tool: Path, body: str) -> None:
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], None),
        (["[N/A], 1980, 700.00"], None),
        (["121.94, 1980, 700.00"], Power(121.94, 1980, 700)),
        (["100, 1980, 700", "690, 1500, 700", "694, 1400, 700", "698, 1300, 700"], Power(696, 1350, 700)),
        (["650, 1500, 700", "no answer", "660, 1400, 700", "670, 14"], Power(660, 1400, 700)),
    ],
)
def test_the_later_half_of_all_answers_counts(lines: list[str], found: Power | None) -> None:
    assert settled(lines) == found


@pytest.mark.parametrize("uuid", ["0a1b", "GPU-0a1b"])
def test_the_card_is_named_whatever_others_there_are(uuid: str) -> None:
    assert "--id=GPU-0a1b" in command(uuid)


def test_a_meter_reads_while_work_runs(tool: Path) -> None:
    write(tool, 'while true; do echo "694.5, 1390, 700.00"; sleep 0.01; done')
    with Meter(CARD) as meter:
        time.sleep(0.2)
    assert meter.found == Power(694.5, 1390, 700)
    assert power("reading, ", meter.found) == {"reading, W": 694.5, "reading, MHz": 1390}


def test_a_tool_that_fails_or_is_not_there_tells_nothing(tool: Path) -> None:
    with Meter(CARD) as absent:
        pass
    write(tool, "echo no devices were found >&2; exit 6")
    with Meter(CARD) as failing:
        time.sleep(0.1)
    assert absent.found is None
    assert failing.found is None
    assert power("", None) == {}


def test_an_error_of_the_work_ends_the_tool_and_goes_on(tool: Path) -> None:
    write(tool, f"echo $$ > {tool.parent}/pid; exec sleep 60")

    def fail() -> None:
        with Meter(CARD):
            deadline = time.time() + 5
            while not (tool.parent / "pid").exists() and time.time() < deadline:
                time.sleep(0.01)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail()
    pid = int((tool.parent / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
