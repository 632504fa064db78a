"""The GPU benchmarks on the CPU: each command runs on the tiny model, and its figures are what they claim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import (
    decode,
    first_token,
    floors,
    gpu,
    prefill,
    references,
    spec_steps,
    stepping,
    tables,
    throughput,
)
from benchmarks.ceilings import Ceilings
from benchmarks.stepping import prompts_of
from engine import LLM, SamplingParams
from engine.errors import UserError
from engine.models.dummy import SHAPES
from engine.models.llama import LlamaModel

ROOT = Path(__file__).parents[2]
TINY = ["model=tiny", "model.dtype=float32", "threads=1", "device=cpu"]


def sections(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["sections"]
    return found


def test_decode_counts_its_steps(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    assert decode.main([*TINY, "--batches", "1,3", "--context", "80", "--json", str(place)]) == 0
    rows = sections(place)[-1]["rows"]
    assert [row["batch"] for row in rows] == [1, 3]
    for row in rows:
        assert row["tokens/s"] == pytest.approx(1e3 * row["batch"] / row["ms a step"])
        assert row["tokens a step and request"] == 1.0
        assert row["kernels compiled"] == 0


@pytest.mark.parametrize(
    ("settings", "batch", "why"),
    [
        (["scheduler.max_running=2"], 4, "a request ended before 4 of them"),
        (["scheduler.max_running=4", "cache.tokens=560", "scheduler.headroom=0"], 4, "carried|ended before"),
    ],
    ids=["too few rows", "too small a pool"],
)
def test_requests_that_cannot_decode_side_by_side_end_the_measurement(
    settings: list[str], batch: int, why: str
) -> None:
    """Neither an endless loop nor the figure of a smaller batch."""
    with LLM(*TINY, "cache=none", *settings) as llm, pytest.raises(UserError, match=why):
        stepping.decode(llm, batch, 200)


def test_a_measurement_leaves_nothing_behind() -> None:
    with LLM(*TINY, "cache=none", "scheduler.max_running=3") as llm:
        took = stepping.decode(llm, 3, 80)
        assert not llm.has_work()
        llm.check()
    assert took.tokens == 3.0


def test_prompts_in_many_chunks_do_not_shorten_the_measurement() -> None:
    """Whoever is prefilled first decodes meanwhile, and must not end before the others have begun."""
    with LLM(*TINY, "cache=none", "scheduler.max_running=6", "scheduler.chunk_tokens=16") as llm:
        assert stepping.decode(llm, 6, 128).tokens == 6.0


def test_a_silent_benchmark_tells_where_it_stands() -> None:
    code = "import time; from benchmarks import tables; tables.SILENCE = 0.1; tables.say('begin'); "
    code += "exec(compile('def stuck():\\n time.sleep(1)', '', 'exec')); stuck()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "begin" in done.stderr
    assert "silent for 0.1 s" in done.stderr
    assert "in stuck" in done.stderr


def test_a_second_engine_may_change_what_the_first_was_given(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    arguments = [*TINY, "overlap=future", "--batches", "1", "--context", "80", "--against", "overlap=none"]
    assert decode.main([*arguments, "--json", str(place)]) == 0
    assert sections(place)[-1]["rows"][0]["batch"] == 1


def test_two_engines_take_turns(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    arguments = [*TINY, "--batches", "2", "--context", "80", "--against", "overlap=none"]
    assert decode.main([*arguments, "--json", str(place)]) == 0
    (row,) = sections(place)[-1]["rows"]
    assert row["times as fast"] == pytest.approx(row["against, ms"] / row["ms a step"])


def test_prefill_compares_modes(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    arguments = [*TINY, "attention=torch", "--lengths", "16,40", "--modes", "none", "piecewise"]
    assert prefill.main([*arguments, "--repeats", "2", "--json", str(place)]) == 0
    rows = sections(place)[-1]["rows"]
    assert [row["tokens"] for row in rows] == [16, 40]
    for row in rows:
        assert row["piecewise over none"] == pytest.approx(row["pcg=none, ms"] / row["pcg=piecewise, ms"])


def test_settings_of_ones_own_take_the_place_of_a_benchmarks() -> None:
    (llm,) = prefill.engines(["none"], [*TINY, "scheduler.chunk_tokens=16", "cache.page_size=4"], 40).values()
    with llm:
        stepping.first_tokens([llm], 40, 0)
        assert llm.metrics.extend_steps == 2 * 3, "two warm-ups of 16 + 16 + 8 tokens"


def test_steps_with_drafts_force_acceptance(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    arguments = [*TINY, "--batches", "2", "--context", "200", "--kinds", "EAGLE3, 2 drafts"]
    assert spec_steps.main([*arguments, "--json", str(place)]) == 0
    plain, drafted = sections(place)[-1]["rows"]
    assert plain["drafts"] == "none"
    assert drafted["tokens a step"] == pytest.approx(spec_steps.FORCED, abs=0.15)


def test_throughput_counts_all_tokens(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    sizes = ["--requests", "6", "--longest-prompt", "48", "--longest-answer", "40", "--repeats", "1"]
    assert throughput.main([*TINY, *sizes, "--json", str(place)]) == 0
    (row,) = sections(place)[-1]["rows"]
    prompts, params = throughput.mix(512, 6, 48, 40)
    asked = sum(map(len, prompts)) + sum(p.max_tokens or 0 for p in params)
    assert row["total tokens/s"] * row["seconds"] == pytest.approx(asked)
    assert row["requests a decode step"] > 3, "all prompts are computed before anybody decodes"
    assert row["prefill steps"] == 1
    assert 0 <= row["idle share"] < 1


def test_the_floor_of_a_run_adds_prefill_decode_and_keys() -> None:
    card = Ceilings(bandwidth=4.0e12, flops=700e12, sustained=600e12, node=1e-6, launch=8e-6, wait=14e-6)
    counts = {"extend_steps": 2, "prompt_tokens": 16384, "decode_steps": 100, "decode_rows": 6400}
    llm = SimpleNamespace(shape=SHAPES["llama-3.1-8b"], dtype="bfloat16")
    products, weights = 2 * 7_504_658_432 * 16384 / 700e12, 100 * 7_504_658_432 * 2 / 4.0e12
    keys = 131072 * 6400 * 500 / 4.0e12
    assert throughput.floor(llm, card, counts, 500.0) == pytest.approx(products + weights + keys)  # type: ignore[arg-type]


def test_transformers_with_our_weights_says_the_same() -> None:
    """The reference shares the weights: its greedy tokens are ours."""
    with LLM(*TINY, "attention=torch") as llm:
        prompt = prompts_of(llm.shape.vocab_size, 1, 12)
        ours = llm.generate(prompt, SamplingParams(max_tokens=8, ignore_eos=True))[0].completions[0].token_ids
        assert isinstance(llm.model, LlamaModel)
        made = references.as_transformers(llm.model)
        assert (
            made.model.layers[0].mlp.down_proj.weight.data_ptr()
            == llm.model.weights.layers[0].down.weight.data_ptr()
        )  # type: ignore[attr-defined]
        ids = torch.tensor(prompt)
        out = made.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=8,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert out[0, 12:].tolist() == list(ours)


def test_floors_are_the_sum_of_what_must_be_read() -> None:
    """Llama-3.1-8B: 7.5 billion weights are multiplied, 128 KiB of keys and values a token."""
    shape = SHAPES["llama-3.1-8b"]
    card = Ceilings(bandwidth=4.6e12, flops=711e12, sustained=650e12, node=1e-6, launch=8e-6, wait=14e-6)
    assert floors.matrix_weights(shape) == 7_504_658_432
    assert floors.kv_bytes(shape, "bfloat16", 1) == 131072
    assert floors.byte_floor(shape, "bfloat16", card, 1, 256) == pytest.approx(3.270e-3, rel=1e-3)
    large = floors.two_term_floor(shape, "bfloat16", card, 256, 256 * 256)
    assert large == pytest.approx(2 * 7.504658432e9 * 256 / 711e12 + 131072 * 65536 / 4.6e12)


def test_a_step_is_placed_against_both_rates_of_the_card() -> None:
    """At 256 requests products count, at one bytes do: the clock's share shows in the former alone."""
    card = Ceilings(bandwidth=4.6e12, flops=720e12, sustained=600e12, node=1e-6, launch=8e-6, wait=14e-6)
    llm = SimpleNamespace(shape=SHAPES["llama-3.1-8b"], dtype="bfloat16", spec=SimpleNamespace(width=1))
    took = stepping.Decoded(10e-3, 1.0, 256.0, 0.0, 1.0, 0.0, 1.0, 0)
    many, one = (decode.row(llm, batch, 256, took, card) for batch in (256, 1))  # type: ignore[arg-type]
    keys = 131072 * 65536 / 4.6e12
    assert many["of both terms"] == pytest.approx((2 * 7.504658432e9 * 256 / 720e12 + keys) / 10e-3)
    assert many["of both, sustained rate"] == pytest.approx((2 * 7.504658432e9 * 256 / 600e12 + keys) / 10e-3)
    assert (
        one["of both, sustained rate"]
        == one["of both terms"]
        == pytest.approx(one["share of the byte floor"])
    )


def test_a_table_shows_dashes_and_three_digits() -> None:
    text = tables.Section("T", [{"a": 1.23456, "b": None}, {"a": 12345.6, "b": 2}], "N").markdown()
    assert text.splitlines()[2:6] == ["| a | b |", "| --- | --- |", "| 1.23 | - |", "| 12,346 | 2 |"]


def test_a_benchmark_that_fails_leaves_its_reason_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ("--batches", "1", "--context", "80")
    commands = [
        gpu.Run("8b-broken", "decode", ("model=nonesuch",)),
        gpu.Run("8b-decode", "decode", (*TINY, *tiny)),
    ]
    monkeypatch.setattr(gpu, "runs", lambda models: commands)
    assert gpu.main([str(tmp_path / "out")]) == 1
    page = capsys.readouterr().out
    assert "### 8b-broken" in page
    assert "nonesuch" in page
    assert "| 1 |" in page
    reports = json.loads((tmp_path / "out" / "report.json").read_text())
    assert reports["8b-broken"] is None
    assert reports["8b-decode"]["sections"][-1]["rows"][0]["batch"] == 1


def test_a_benchmark_that_takes_too_long_leaves_what_it_said(tmp_path: Path) -> None:
    endless = gpu.Run("endless", "decode", (*TINY, "--batches", ",".join(["1"] * 5000)))
    page = gpu.run(endless, tmp_path, limit=6)
    assert "stopped after 6 s" in page
    assert "decode, batch 1" in page
    assert "decode, batch 1" in (tmp_path / "endless.log").read_text()


def test_the_phases_of_a_start_add_up(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    assert first_token.main([*TINY, "--json", str(place)]) == 0
    rows = {row["phase"]: row["warm, s"] for row in sections(place)[0]["rows"]}
    assert sum(value for name, value in rows.items() if name != "all") == pytest.approx(rows["all"])
    assert set(first_token.PHASES) < set(rows)
    assert 0 < rows["first token"] < rows["all"]
