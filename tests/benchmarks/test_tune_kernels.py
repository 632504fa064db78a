"""The command that measures kernels: where what it finds goes, what it says of a step. Times are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.errors import UserError
from engine.kernel_choices.plans import LINEAR, NORM_GATED, Place, Plan
from engine.kernel_choices.source import cached_file, read
from engine.kernel_choices.table import Circumstances, Entry

ROOT = Path(__file__).parents[2]
HERE = Circumstances("a GPU", "2.11.0", "3.6.0")
PLACE = Place(NORM_GATED, "bfloat16", 4, 28672, 4096)
GOAL = Plan("tile", 32, 64, 4, 4, norm=False, gate=True)


def test_entries_are_kept_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.tune_kernels import Kept

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry, other = Entry(GOAL, 1e-5, 2e-5), replace(PLACE, tokens=8)
    for out, place_of in ((None, cached_file(HERE)), (tmp_path / "t.json", tmp_path / "t.json")):
        kept = Kept(HERE, out)
        kept.add(PLACE, entry)
        kept.add(other, Entry(None, 1e-5, 1e-5))
        assert read(place_of).entries == {PLACE: entry, other: Entry(None, 1e-5, 1e-5)}
    with pytest.raises(UserError, match="holds a table of a GPU"):
        Kept(replace(HERE, gpu="another"), tmp_path / "t.json").add(PLACE, entry)


def test_totals_are_of_complete_steps_alone() -> None:
    from benchmarks.kernel_tables import row, totals
    from benchmarks.tune_kernels import order

    down = Place(LINEAR, "bfloat16", 1, 4096, 14336)
    head = Place(LINEAR, "bfloat16", 1, 128256, 4096)
    uses = {replace(PLACE, tokens=1): 32.0, down: 32.0, head: 1.0}
    assert order(uses, [1, 8])[:4] == [
        *(replace(PLACE, tokens=t) for t in (1,)),
        down,
        head,
        replace(PLACE, tokens=8),
    ]
    found = {place: Entry(GOAL, 1e-5, 2e-5) for place in uses} | {
        replace(PLACE, tokens=8): Entry(None, 1e-5, 1e-5)
    }
    (only,) = totals(found, uses)
    assert only["tokens"] == 1
    assert only["torch, ms"] == pytest.approx(65 * 0.02)
    assert only["ratio"] == pytest.approx(2)
    assert only["chosen, TB/s"] == pytest.approx(
        2 * (32 * (28672 * 4096 + 4096 * 14336) + 128256 * 4096) / (65 * 1e-5) / 1e12
    )
    assert row(PLACE, Entry(None, 1e-5, 1e-5))["plan"] == "torch"
    assert "tile 32x64" in row(PLACE, Entry(GOAL, 1e-5, 2e-5))["plan"]


def test_a_configuration_tells_its_products() -> None:
    """Counted in a run: a decode step of the model, with its head once; a draft has its own."""
    code = (
        "from benchmarks.tune_kernels import products_of\n"
        "tiny = ['model=tiny', 'model.dtype=fp32', 'device=cpu', 'attention=triton', 'threads=1']\n"
        "for place, uses in products_of(tiny).items():\n"
        "    print(place.stage, place.n, place.k, uses)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == [
        "linear 512 64 1.0", "linear 64 128 3.0", "linear 64 64 3.0", "norm_gated 256 64 3.0",
        "norm_linear 128 64 3.0",
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.tune_kernels import main

    assert main(["model=tiny"]) == 1
    assert "no CUDA device" in capsys.readouterr().err
    assert main(["model=tiny", "--tokens", "7"]) == 1
    assert "7 is none of 1, 2, 3, 4" in capsys.readouterr().err


class Compilers:
    """No process: nothing is compiled."""

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def without_a_gpu(
    uses: dict[Place, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Plan], list[Place]]:
    """All of the command but the GPU, a configuration with these products: times are made up, and fewer steps
    in flight are faster. Which plans are tried, and at which places."""
    from benchmarks import tune_kernels

    tried: list[Plan] = []
    measured: list[Place] = []

    class Timer:
        def __init__(self, place: Place, *given: object) -> None:
            measured.append(place)

        def quick(self, plans: list[Plan]) -> list[float]:
            tried.extend(plans)
            return [1e-5 * plan.stages * (2 - plan.norm) for plan in plans]

        def fair(self, plans: list[Plan | None]) -> list[list[float]]:
            return [[1.0] if plan is None else self.quick([plan]) for plan in plans]

    class Properties:
        major, multi_processor_count = 9, 132

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in {
        "is_available": True,
        "get_device_properties": Properties,
        "get_device_name": "x",
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *given, value=value: value)
    monkeypatch.setattr(tune_kernels, "products_of", lambda overrides: uses)
    monkeypatch.setattr(tune_kernels, "weight_pool", lambda *given: torch.empty(0))
    monkeypatch.setattr(tune_kernels, "compilers", lambda workers: Compilers())
    monkeypatch.setattr(tune_kernels, "StageTimer", Timer)
    monkeypatch.setattr(
        tune_kernels.tables,
        "heading",
        lambda device: {"device": {}, "versions": {}, "date": "", "command": ""},
    )
    return tried, measured


@pytest.mark.parametrize(("quick", "most"), [([], 100), (["--quick"], 20)])
def test_a_run_starts_from_what_the_file_holds(
    quick: list[str],
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from benchmarks import tune_kernels

    place, table = Place(NORM_GATED, "bfloat16", 1, 28672, 4096), tmp_path / "t.json"
    tried, _ = without_a_gpu({place: 32.0}, tmp_path, monkeypatch)
    won = Plan("tile", 64, 128, 4, 4, swap=True, gate=True)
    tune_kernels.Kept(Circumstances.here("x"), table).add(replace(place, tokens=16), Entry(won, 1e-5, 2e-5))
    assert tune_kernels.main(["--tokens", "8", "--out", str(table), *quick]) == 0
    entries = read(table).entries
    assert entries[replace(place, tokens=16)].plan == won
    found = entries[replace(place, tokens=8)].plan
    assert found is not None
    assert found.norm
    assert tried[:2] == [won, replace(won, norm=True)]
    assert 10 < len(tried) < most
    assert "norm, gate |" in capsys.readouterr().out


@pytest.mark.parametrize("quick", [[], ["--quick"]], ids=["thorough", "quick"])
def test_above_64_tokens_gated_products_alone_are_measured(
    quick: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without kernels in CUDA C++: the others get no entry, the progress counts what is measured, and there
    is no total of a step."""
    from benchmarks import tune_kernels

    gated, down = Place(NORM_GATED, "bfloat16", 1, 28672, 4096), Place(LINEAR, "bfloat16", 1, 4096, 14336)
    small, table = Place(NORM_GATED, "bfloat16", 1, 3072, 576), tmp_path / "t.json"
    _, measured = without_a_gpu({down: 32.0, gated: 32.0, small: 1.0}, tmp_path, monkeypatch)
    assert tune_kernels.main(["--tokens", "64,96,256", "--out", str(table), *quick]) == 0
    few = [replace(place, tokens=64) for place in (gated, down, small)]
    many = [replace(gated, tokens=tokens) for tokens in (96, 256)]
    assert measured == [*few, *many]
    entries = read(table).entries
    assert set(entries) == set(measured)
    assert [entries[place].plan for place in many] == [
        Plan("waves", 256, 64, 8, 3, gate=True, turns=turns) for turns in (1, 2)
    ]
    said, words = capsys.readouterr(), "norm_gated bfloat16, 256 tokens, 28672 x 4096"
    assert f"5/5 {words}" in said.err
    totals, products = said.out.split("### Products")
    assert [line.split()[1] for line in totals.splitlines() if line[:3] in ("| 6", "| 9", "| 2")] == ["64"]
    assert "| waves 256x64, 8 warps, 3 stages, turns 2, gate |" in products


def test_with_kernels_in_cuda_every_product_of_129_tokens_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So there is a total of a step, and what the table holds can be read again."""
    from benchmarks import tune_kernels

    gated, down = Place(NORM_GATED, "bfloat16", 1, 28672, 4096), Place(LINEAR, "bfloat16", 1, 4096, 14336)
    table = tmp_path / "t.json"
    _, measured = without_a_gpu({down: 32.0, gated: 32.0}, tmp_path, monkeypatch)
    monkeypatch.setattr(tune_kernels, "why_not", lambda: "")
    assert tune_kernels.main(["--tokens", "128,192,256", "--out", str(table)]) == 0
    many = [replace(place, tokens=tokens) for tokens in (192, 256) for place in (gated, down)]
    assert measured == [replace(gated, tokens=128), *many]
    entries = read(table).entries
    assert [entries[place].plan for place in many if place.n == down.n] == [Plan("halves", 128, 64, 8, 4)] * 2
    totals, products = capsys.readouterr().out.split("### Products")
    assert [line.split()[1] for line in totals.splitlines() if line[:3] in ("| 1", "| 2")] == ["192", "256"]
    assert "| halves 128x64, 8 warps, 4 stages |" in products


def test_where_no_kernel_of_ours_serves_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import tune_kernels

    _, measured = without_a_gpu({Place(LINEAR, "bfloat16", 1, 4096, 14336): 32.0}, tmp_path, monkeypatch)
    assert tune_kernels.main(["--tokens", "128", "--out", str(tmp_path / "t.json")]) == 0
    assert measured == []
    assert "none of these products has kernels of ours" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_small_model_is_tuned(tmp_path: Path) -> None:
    """Two of its stages, whatever time they take on a shared card."""
    table = tmp_path / "t.json"
    command = [
        sys.executable, "-m", "benchmarks.tune_kernels", "model=tiny", "model.dtype=bf16",
        "model.hidden=512", "model.intermediate=1024", "cache.max_context=256", "cache.tokens=1024",
        "scheduler.max_running=2", "scheduler.chunk_tokens=256", "sampling.max_tokens=8",
        "--stages", "norm_gated", "norm_linear", "--tokens", "8", "--quick", "--out", str(table),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "All products of a decode step" in done.stdout
    entries = read(table).entries
    assert {(place.stage, place.tokens) for place in entries} == {
        (stage, 8) for stage in ("norm_gated", "norm_linear")
    }
    assert all(entry.seconds > 0 and entry.library > 0 for entry in entries.values())
