"""The search for fast kernels: what it tries, what it chooses and where that goes. Times are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.kernel_candidates import Card, fits, neighbours, starts
from benchmarks.kernel_search import Stopwatch, best_entry
from engine.errors import UserError
from engine.kernel_choices.plans import BEST, BUCKETS, LINEAR, NORM_GATED, NORM_LINEAR, Place, Plan
from engine.kernel_choices.source import cached_file, read
from engine.kernel_choices.table import Circumstances, Entry

H200 = Card(132, 227 << 10)
SITES = [
    (NORM_LINEAR, 6144, 4096), (LINEAR, 4096, 4096), (NORM_GATED, 28672, 4096), (LINEAR, 4096, 14336),
    (LINEAR, 128256, 4096), (BEST, 32000, 4096), (NORM_LINEAR, 960, 576), (LINEAR, 576, 576),
    (NORM_GATED, 3072, 576), (LINEAR, 576, 1536), (LINEAR, 49152, 576),
]  # fmt: skip
ROOT = Path(__file__).parents[2]
HERE = Circumstances("a GPU", "2.11.0", "3.6.0")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("tokens", BUCKETS)
def test_every_site_has_starts_and_all_of_them_fit(tokens: int, dtype: str) -> None:
    for stage, n, k in SITES:
        place = Place(stage, dtype, tokens, n, k)
        found = starts(place, H200)
        assert len(found) >= 2, place
        assert {plan.kernel for plan in found} == ({"rows", "tile"} if tokens <= 8 else {"tile"}), place
        for plan in [*found, *(near for start in found for near in neighbours(start, place, H200))]:
            assert not place.problem(plan)
            assert plan.kernel == "rows" or _shared(plan, tokens, dtype) <= H200.shared


def _shared(plan: Plan, tokens: int, dtype: str) -> int:
    return plan.stages * (plan.block_n + max(16, tokens)) * plan.block_k * (4 if dtype == "float32" else 2)


def test_neighbours_differ_in_one_thing() -> None:
    place = Place(NORM_GATED, "bfloat16", 8, 28672, 4096)
    plan = Plan("tile", 64, 128, 4, 3)
    for near in neighbours(plan, place, H200):
        assert sum(getattr(near, name) != getattr(plan, name) for name in vars(plan)) == 1
    fused = {(near.norm, near.gate) for near in neighbours(plan, place, H200)}
    assert fused == {(False, False), (True, False), (False, True)}


def test_a_matrix_is_first_tried_with_what_won_for_it_elsewhere() -> None:
    from benchmarks.tune_kernels import winners

    place = Place(LINEAR, "bfloat16", 6, 4096, 4096)
    far, near = Plan("tile", 32, 32), Plan("rows", 2, 2048, 8)
    found = {
        replace(place, tokens=64): Entry(far, 1.0, 2.0),
        replace(place, tokens=1): Entry(None, 1.0, 1.0),
        replace(place, tokens=5): Entry(near, 1.0, 2.0),
        replace(place, tokens=5, n=576): Entry(Plan("tile", 16, 16), 1.0, 2.0),
    }
    assert winners(found, place) == [near, far]
    assert starts(place, H200, winners(found, place))[:2] == [near, far]
    many = replace(place, tokens=32)
    assert starts(many, H200, [near, far])[0] == far  # what cannot serve is left out


def test_rows_of_five_tokens_have_several_candidates_of_few_registers() -> None:
    for stage, n, k in SITES[:5]:
        place = Place(stage, "bfloat16", 5, n, k)
        rows = [plan for plan in starts(place, H200) if plan.kernel == "rows"]
        assert len(rows) >= 3
        assert all(plan.gate == (stage == NORM_GATED) and not plan.norm for plan in rows)


@pytest.mark.parametrize(
    "plan",
    [
        Plan("rows", 64, 4096, 4),
        Plan("tile", 128, 256, 4, 5),
        Plan("tile", 16, 16, 4, 1),
        Plan("rows", 4, 1024, 3),
    ],
)
def test_absurd_plans_are_not_tried(plan: Plan) -> None:
    assert not fits(plan, Place(LINEAR, "bfloat16", 4, 4096, 4096), H200)


class MadeUp(Stopwatch):
    """Seconds grow with the distance from one plan; the library takes as long as it is told."""

    def __init__(self, fastest: Plan, library: float) -> None:
        self.tried: list[Plan] = []
        super().__init__(self._quick, self._fair)
        object.__setattr__(self, "_fastest", fastest)
        object.__setattr__(self, "_library", library)

    def __hash__(self) -> int:
        return id(self)

    def _seconds(self, plan: Plan) -> float:
        if plan.stages == 5:
            return float("inf")
        goal: Plan = getattr(self, "_fastest")  # noqa: B009
        sizes = sum(
            abs(getattr(plan, n).bit_length() - getattr(goal, n).bit_length())
            for n in ("block_n", "block_k", "warps")
        )
        kinds = sum(
            getattr(plan, n) != getattr(goal, n)
            for n in ("kernel", "split", "swap", "norm", "gate", "stages")
        )
        return 1.0 + 0.1 * sizes + 0.1 * kinds

    def _quick(self, plans: Sequence[Plan]) -> list[float]:
        self.tried += plans
        return [self._seconds(plan) for plan in plans]

    def _fair(self, plans: Sequence[Plan | None]) -> list[list[float]]:
        assert plans[0] is None
        library: float = getattr(self, "_library")  # noqa: B009
        noise = (1.0, 3.0, 1.0)  # a round in which all are slow changes no ratio
        return [[(library if p is None else self._seconds(p)) * slow for slow in noise] for p in plans]


PLACE = Place(NORM_GATED, "bfloat16", 4, 28672, 4096)
GOAL = Plan("tile", 32, 64, 4, 4, norm=False, gate=True)


def test_the_search_walks_to_the_fastest_plan() -> None:
    watch = MadeUp(GOAL, library=1.5)
    entry = best_entry(PLACE, H200, watch)
    assert entry == Entry(GOAL, 1.0, 1.5)
    assert len(watch.tried) == len(set(watch.tried)) < 100


@pytest.mark.parametrize("library", [0.5, 1.005])
def test_the_library_is_kept_where_nothing_beats_it_clearly(library: float) -> None:
    assert best_entry(PLACE, H200, MadeUp(GOAL, library)) == Entry(None, library, library)


def test_where_no_plan_runs_the_library_is_kept() -> None:
    class Nothing(MadeUp):
        def _seconds(self, plan: Plan) -> float:
            return float("inf")

    assert best_entry(PLACE, H200, Nothing(GOAL, 2.0)) == Entry(None, 2.0, 2.0)


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
    from benchmarks.tune_kernels import order, row, totals

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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_small_model_is_tuned(tmp_path: Path) -> None:
    """Two of its stages at two numbers of tokens, whatever time they take on a shared card."""
    table = tmp_path / "t.json"
    command = [
        sys.executable, "-m", "benchmarks.tune_kernels", "model=tiny", "model.dtype=bf16",
        "model.hidden=512", "model.intermediate=1024", "cache.max_context=256", "cache.tokens=1024",
        "scheduler.max_running=2", "scheduler.chunk_tokens=256", "sampling.max_tokens=8",
        "--stages", "norm_gated", "norm_linear", "--tokens", "1,8", "--out", str(table),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "All products of a decode step" in done.stdout
    entries = read(table).entries
    assert {(place.stage, place.tokens) for place in entries} == {
        (stage, tokens) for stage in ("norm_gated", "norm_linear") for tokens in (1, 8)
    }
    assert all(entry.seconds > 0 and entry.library > 0 for entry in entries.values())
