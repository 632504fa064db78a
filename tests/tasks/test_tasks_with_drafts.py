"""Tasks with drafts on real engines: bench against plain decoding, verify, forced acceptance, replay."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from task_fakes import FakeEngine, context_of

from engine.cli.main import main
from engine.compose import compose
from engine.llm import LLM
from engine.replay.cli import main as replay_main
from engine.runs import OUTPUTS, RESULT, RUN, read_lines
from engine.step_costs import STEP_COSTS, from_document
from engine.tasks.base import EXIT_OK, Task, run_task
from engine.tasks.bench import Bench
from engine.tasks.bench import plain_config as without_drafts
from engine.tasks.generate import Generate
from engine.tasks.verify import Verify

DUMMY = (
    "model=tiny",
    "model.dtype=float32",
    "threads=1",
    "spec=eagle3",
    "spec.load=dummy",
    "spec.adaptive=false",
)
NGRAM = ("model=tiny", "model.dtype=float32", "threads=1", "spec=ngram", "spec.adaptive=false")
SHORT = ("workload.limit=2", "sampling.max_tokens=12")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(tmp_path: Path, task: Task, *overrides: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """(result.json, outputs.jsonl, stdout) of a task on real engines."""
    config = dict(compose([*SHORT, *overrides]).cfg)
    context = context_of(tmp_path, [], config=config)
    object.__setattr__(context, "make_engine", LLM.from_config)
    assert run_task(task, context, "text") == EXIT_OK
    folder = context.folder().path
    shown = context.stdout.getvalue()  # type: ignore[attr-defined]
    return json.loads((folder / RESULT).read_text()), read_lines(folder / OUTPUTS), shown


ONCE = Bench(Bench.Config(repeats=1, reference=False))
FORCED = (*DUMMY, "spec.simulate_accept_length=2.5")


def test_results_rows_and_text_of_every_task_say_so(tmp_path: Path) -> None:
    made, rows, shown = run(tmp_path / "a", Generate(Generate.Config()), *FORCED)
    assert made["simulated_accept_length"] == 2.5
    assert all(row["simulated_accept_length"] == 2.5 for row in rows)
    assert shown.startswith("SIMULATED: ")
    _, _, live = run(tmp_path / "b", Generate(Generate.Config()), *FORCED, "prompt=hello")
    assert live.startswith("SIMULATED: ")
    measured, rows, shown = run(tmp_path / "c", ONCE, *FORCED)
    assert measured["spec"]["simulated_accept_length"] == 2.5
    assert all(row["simulated_accept_length"] == 2.5 for row in rows)
    assert "SIMULATED" in shown
    assert any(line.startswith("simulated: ") for line in measured["warnings"])


@pytest.mark.parametrize("overrides", [DUMMY, NGRAM, (*DUMMY, "spec.adaptive=true")])
def test_bench_prints_everything_of_drafts_for_any_algorithm(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    result, _, shown = run(tmp_path, Bench(Bench.Config(repeats=1)), *overrides)
    spec = result["spec"]
    assert spec["emitted"] == result["metrics"]["decode_tokens"]
    assert spec["proposed"] == result["metrics"]["drafted_tokens"]
    assert sum(spec["widths"].values()) == result["metrics"]["decode_steps"]
    assert sum(spec["accept_length_histogram"].values()) == result["metrics"]["decode_results"]
    assert sum(spec["time_shares"].values()) == pytest.approx(1)
    assert spec["draft_too_long"] == 0
    assert result["speedup"] == pytest.approx(
        result["output_tokens_per_s"] / result["plain"]["output_tokens_per_s"]
    )
    assert result["step_cost"] == pytest.approx(result["decode_step_ms"] / result["plain"]["decode_step_ms"])
    for words in (
        "proposed",
        "tokens of a run",
        "accepted by depth",
        "steps by width",
        "speed-up",
        "cost of a step",
    ):
        assert words in shown


def test_the_comparison_runs_without_drafts_and_else_the_same(tmp_path: Path) -> None:
    context = context_of(tmp_path, [], *DUMMY[1:], "cache.page_size=32")
    found = without_drafts(context)
    assert found is not None
    assert found["spec"] == compose(["spec=none"]).cfg["spec"]
    assert {k: v for k, v in found.items() if k != "spec"} == {
        k: v for k, v in context.config.items() if k != "spec"
    }
    assert without_drafts(context_of(tmp_path / "x", [])) is None


def test_plain_decoding_has_no_figures_of_drafts(tmp_path: Path) -> None:
    result, _, shown = run(tmp_path, Bench(Bench.Config(repeats=1)), "model=tiny", "threads=1")
    assert (result["spec"], result["speedup"], result["step_cost"], result["plain"]) == (None,) * 4
    assert "speed-up" not in shown


@pytest.mark.parametrize(
    ("overrides", "mark"),
    [
        ((*NGRAM, "workload=random", "workload.count=2"), "(not representative)"),
        ((*FORCED,), "(simulated)"),
        ((*FORCED, "workload=random", "workload.count=2"), "(not representative, simulated)"),
    ],
)
def test_a_speed_up_that_proves_nothing_is_marked(
    tmp_path: Path, overrides: tuple[str, ...], mark: str
) -> None:
    """Field report M2."""
    _, _, shown = run(tmp_path, Bench(Bench.Config(repeats=1)), *overrides)
    claims = [line for line in shown.splitlines() if "speed-up" in line]
    assert len(claims) == 1
    assert claims[0].endswith(mark)


@pytest.mark.parametrize(("raw", "template", "warned"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_acceptance_on_raw_prompts_of_a_chat_model_is_warned_of(
    tmp_path: Path, raw: bool, template: bool, warned: int
) -> None:
    """Field report Q11."""
    engine = FakeEngine(width=3)
    engine.tokenizer.chat_template = "x" if template else None
    engine.tokenizer.encode_chat = lambda messages: [1, 2, 3]
    context = context_of(tmp_path, engine, *SHORT)
    run_task(Bench(Bench.Config(repeats=1, raw=raw, reference=False)), context, "text")
    result = json.loads((context.folder().path / RESULT).read_text())
    assert sum(line.startswith("raw prompts") for line in result["warnings"]) == warned


TREE = (*DUMMY, "spec.topk=2", "spec.num_draft_tokens=7")


@pytest.mark.parametrize("overlap", ["none", "future"])
@pytest.mark.parametrize(
    "overrides", [DUMMY, TREE, NGRAM, (*NGRAM, "spec.branches=2"), (*DUMMY, "spec.adaptive=true")]
)
def test_verify_passes_and_says_what_it_exercised(
    tmp_path: Path, overrides: tuple[str, ...], overlap: str
) -> None:
    result, _, shown = run(tmp_path, Verify(Verify.Config()), *overrides, f"overlap={overlap}")
    assert result["verdict"] in ("pass", "near-tie")
    used = result["exercised"]
    if "spec.adaptive=true" not in overrides:  # which may find, on this machine, that drafts never pay
        assert used["drafted_tokens"] > 0
    assert used["accept_length"] >= 1
    assert "exercised: " in shown
    assert ("no draft was accepted" in shown) == (used["accepted_drafts"] == 0)


def test_a_replay_uses_the_step_costs_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main([*DUMMY, *SHORT, "spec.adaptive=true", "hydra.run.dir=first"]) == EXIT_OK
    costs = (tmp_path / "first" / STEP_COSTS).read_text()
    assert (1, 1) in from_document(json.loads(costs)).seconds
    assert replay_main([str(tmp_path / "first"), "hydra.run.dir=second"]) == EXIT_OK
    assert (tmp_path / "second" / STEP_COSTS).read_text() == costs
    assert "identical" in capsys.readouterr().out
    assert "step_costs" not in json.loads((tmp_path / "second" / RUN).read_text()).get("changed", {})
