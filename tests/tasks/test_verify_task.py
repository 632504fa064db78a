"""task=verify: the verdicts, and the distances they rest on, against the sampler itself."""

import json
from pathlib import Path

import pytest
import torch
from task_fakes import FakeEngine, context_of, lowercase, plain_config, text_of

from engine.errors import UserError
from engine.params import SamplingParams
from engine.runs import OUTPUTS, RESULT, read_lines
from engine.sampling.choose import inverse_cdf
from engine.sampling.filters import apply_filters
from engine.tasks.base import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK, run_task
from engine.tasks.compare import Closeness, Comparison, Run, Verdict, compare, near_ties_per_10000, overall
from engine.tasks.probe import Decision, Tolerance, coin_of, distance, shaped, top_two_gap
from engine.tasks.reference import REFERENCE, reference_of
from engine.tasks.verify import Verify

TIGHT = Tolerance(1e-3, 1e-4)
FINE = Closeness("gap", 1e-5, 1e-3, 1e-5)
FAR = Closeness("gap", 0.5, 1e-3, 0.5)


def judged(closeness: Closeness):  # type: ignore[no-untyped-def]
    return lambda request, sample, prefix, token: closeness


@pytest.mark.parametrize(
    ("reference", "fast", "closeness", "verdict", "compared"),
    [
        (Run((1, 2, 3), "stop"), Run((1, 2, 3), "stop"), FAR, Verdict.PASS, 3),
        (Run((), "length"), Run((), "length"), FAR, Verdict.PASS, 0),
        (Run((1, 2, 3), "stop"), Run((1, 9, 9), "stop"), FINE, Verdict.NEAR_TIE, 1),
        (Run((1, 2, 3), "stop"), Run((1, 9, 9), "stop"), FAR, Verdict.DIFFERENT, 1),
        (Run((1, 2, 3), "stop"), Run((1, 2, 3), "length"), FINE, Verdict.DIFFERENT, 3),
        (Run((1, 2, 3), "stop"), Run((1, 2), "stop"), FINE, Verdict.DIFFERENT, 2),
        (Run((1,), "stop"), Run((1, 2), "stop"), FINE, Verdict.DIFFERENT, 1),
    ],
)
def test_verdict_of_one_answer(
    reference: Run, fast: Run, closeness: Closeness, verdict: Verdict, compared: int
) -> None:
    found = compare(0, 0, reference, fast, judged(closeness))
    assert (found.verdict, found.compared) == (verdict, compared)


def test_the_judge_is_asked_about_the_first_divergence_only() -> None:
    asked = []
    judge = lambda *question: asked.append(question) or FINE  # noqa: E731
    compare(4, 1, Run((1, 2, 3, 4), "stop"), Run((1, 2, 8, 9), "stop"), judge)
    assert asked == [(4, 1, (1, 2), 8)]


def test_worst_verdict_and_rate() -> None:
    make = lambda verdict, n: Comparison(0, 0, verdict, n)  # noqa: E731
    rows = [make(Verdict.PASS, 9000), make(Verdict.NEAR_TIE, 11000)]
    assert overall(rows) is Verdict.NEAR_TIE
    assert overall([*rows, make(Verdict.DIFFERENT, 1)]) is Verdict.DIFFERENT
    assert overall([]) is Verdict.PASS
    assert near_ties_per_10000(rows) == 0.5
    assert near_ties_per_10000([]) == 0.0


def decision(params: SamplingParams, seed: int = 1, output: tuple[int, ...] = (1, 1, 2)) -> Decision:
    return Decision((0, 1), output, params, 0, seed)


def test_greedy_distance_is_the_gap_to_the_best() -> None:
    logits = torch.tensor([1.0, 3.0, 2.5, 2.999])
    greedy = decision(SamplingParams())
    assert distance(logits, greedy, 1, TIGHT) == 0
    assert distance(logits, greedy, 2, TIGHT) == pytest.approx(0.5)
    assert top_two_gap(logits, greedy) == pytest.approx(0.001, rel=1e-3)


def test_penalties_bias_and_banned_ids_count() -> None:
    params = SamplingParams(
        repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, logit_bias={0: 3.0}
    )
    scores = torch.tensor([1.0, 4.0, -4.0, 1.0, 8.0, 2.0, 9.0]).double()
    found = shaped(scores, Decision((1, 2, 3), (4, 4, 5), params, 0, 1, banned=(6,)))
    expected = [4.0, 2.0, -8.0, 0.5, 4.0 - 1.0 - 0.25, 1.0 - 0.5 - 0.25, -torch.inf]
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8, "min_p": 0.05}]
)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_the_samplers_own_choice_has_distance_zero_and_others_the_distance_to_their_edge(
    filters: dict[str, float], temperature: float
) -> None:
    generator = torch.Generator().manual_seed(3)
    params = SamplingParams(temperature=temperature, **filters)  # type: ignore[arg-type]
    for seed in range(20):
        logits = torch.randn(64, generator=generator)
        own = decision(params, seed)
        coin = coin_of(own)
        weights = ((logits - logits.max()) / temperature).exp().unsqueeze(0)
        kept = apply_filters(
            weights.clone(),
            torch.tensor([params.top_k], dtype=torch.int32),
            torch.tensor([params.top_p]),
            torch.tensor([params.min_p]),
        )
        chosen = int(inverse_cdf(kept, torch.tensor([coin], dtype=torch.float64)))
        edges = (kept[0].double() / kept[0].double().sum()).cumsum(-1)
        assert distance(logits, own, chosen, TIGHT) == 0
        for other in range(64):
            if other == chosen:
                continue
            found = distance(logits, own, other, Tolerance(0.0, 0.0))
            low, high = float(edges[other] - kept[0, other] / kept[0].sum()), float(edges[other])
            expected = max(low - coin, coin - high) if kept[0, other] > 0 else float("inf")
            assert found == pytest.approx(expected, abs=1e-5)


def test_a_filters_edge_may_move_by_the_tolerance() -> None:
    logits = torch.log(torch.tensor([0.5, 0.30001, 0.19999]))
    own = next(
        d
        for seed in range(200)
        if coin_of(d := decision(SamplingParams(temperature=1, top_p=0.8), seed)) > 0.7
    )
    assert distance(logits, own, 2, Tolerance(0.0, 0.0)) == float("inf")
    assert distance(logits, own, 2, Tolerance(0.0, 1e-4)) < 0.11


def test_the_coin_belongs_to_the_position_and_sample() -> None:
    params = SamplingParams(temperature=1.0)
    coins = {
        coin_of(Decision((1,), (2,) * n, params, i, s)) for n in range(3) for i in range(3) for s in (1, 2)
    }
    assert len(coins) == 18


def test_reference_differs_in_the_fast_paths_only(tmp_path: Path) -> None:
    context = context_of(tmp_path, [], "sampling=creative", "seed=3", "cache.max_context=77")
    config = reference_of(context)
    kept = ("model", "sampling", "seed", "device", "workload", "prompt", "threads")
    assert {k: config[k] for k in kept} == {k: context.config[k] for k in kept}
    assert config["scheduler"]["max_running"] == 1
    assert config["cache"]["max_context"] == 77
    plain = plain_config(*REFERENCE)
    assert [config[k] for k in ("attention", "overlap", "spec", "tbo", "pcg", "graph")] == [
        plain[k] for k in ("attention", "overlap", "spec", "tbo", "pcg", "graph")
    ]


def test_verifying_the_reference_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="same here"):
        Verify(Verify.Config()).run(context_of(tmp_path, [], *REFERENCE))


def verify(tmp_path: Path, fast: FakeEngine, slow: FakeEngine, *overrides: str, **options: float):  # type: ignore[no-untyped-def]
    context = context_of(tmp_path, [fast, slow], "sampling.max_tokens=12", "workload.limit=3", *overrides)
    code = run_task(Verify(Verify.Config(**options)), context, "text")  # type: ignore[arg-type]
    return code, json.loads((context.folder().path / RESULT).read_text()), context


def test_equal_paths_pass(tmp_path: Path) -> None:
    fast, slow = FakeEngine(width=3), FakeEngine()
    code, result, context = verify(tmp_path, fast, slow)
    assert (code, result["verdict"], result["tokens_compared"]) == (EXIT_OK, "pass", 36)
    assert (fast.closed, slow.closed) == (True, True)
    rows = read_lines(context.folder().path / OUTPUTS)
    assert sorted((r["path"], r["index"]) for r in rows) == sorted(
        (p, i) for p in ("chosen", "reference") for i in range(3)
    )


def broken_at(position: int):  # type: ignore[no-untyped-def]
    def script(ids):  # type: ignore[no-untyped-def]
        done = len(ids) - next(i for i in range(len(ids) - 1, -1, -1) if ids[i] == 32) - 1
        return 65 if done == position else lowercase(ids)

    return script


def test_a_real_difference_is_exit_code_one(tmp_path: Path) -> None:
    code, result, context = verify(tmp_path, FakeEngine(broken_at(5)), FakeEngine())
    assert (code, result["verdict"]) == (EXIT_DIFFERENT, "DIFFERENT")
    first = result["divergences"][0]
    assert (first["position"], first["fast"], first["closeness"]["distance"]) == (5, 65, 10.0)
    assert "DIFFERENT" in text_of(context.stdout)


def test_a_close_one_is_a_near_tie(tmp_path: Path) -> None:
    code, result, _ = verify(tmp_path, FakeEngine(broken_at(5)), FakeEngine(), gap=11.0)
    assert (code, result["verdict"]) == (EXIT_OK, "near-tie")
    assert result["counts"] == {"pass": 0, "near-tie": 3, "DIFFERENT": 0}
    assert result["near_ties_per_10000"] == pytest.approx(1e4 * 3 / 15)


def test_an_interrupted_check_does_not_pass(tmp_path: Path) -> None:
    import os
    import signal

    slow = FakeEngine()
    slow.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 14 else None
    code, result, _ = verify(tmp_path, FakeEngine(), slow)
    assert (code, result["interrupted"], result["answers"]) == (EXIT_INTERRUPTED, True, 1)
    assert result["verdict"] == "incomplete"
