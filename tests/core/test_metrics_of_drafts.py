"""Figures of drafts against counts done by hand, and stage times. Field reports E6, M4."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from support.drafters import Scripted
from support.engines import TINY, make

from engine.params import SamplingParams
from engine.spec_metrics import NOTHING, Run, SpecCounts, spec_figures, time_shares
from engine.stage_times import StageTimes

RUNS = Counter(
    {
        Run(5, 4, 0, 1, True): 4,  # nothing accepted
        Run(5, 4, 2, 3, True): 2,
        Run(5, 4, 4, 5, True): 1,
        Run(5, 4, 4, 3, True): 1,  # the third token ended the answer
        Run(3, 2, 2, 3, True): 2,  # a narrower step
        Run(5, 0, 0, 1, True): 3,  # no drafts for this request
    }
)


def test_figures_by_hand() -> None:
    figures = spec_figures(SpecCounts(RUNS, Counter({1: 7, 5: 11, 3: 2}), {}), results=20, deepest=4)
    assert figures["proposed"] == 4 * 8 + 2 * 2
    assert figures["accepted"] == 2 * 2 + 4 + 3 + 2 * 2
    assert figures["emitted"] == 4 + 6 + 5 + 3 + 6 + 3 + 7
    assert figures["accept_length_histogram"] == {"1": 14, "3": 5, "5": 1}
    # depth 1: 10 tried, 6 hit; 2: the same; 3: 4 + 2 + 1 + 1 tried, 2 hit; 4: the cut run is unknown there
    assert figures["acceptance_per_position"] == pytest.approx([6 / 10, 6 / 10, 2 / 8, 1 / 7])
    assert figures["widths"] == {"1": 7, "3": 2, "5": 11}
    assert figures["time_shares"] is None


def test_a_tree_has_positions_for_its_levels_only() -> None:
    runs = Counter({Run(9, 8, 2, 3, True): 3, Run(9, 8, 0, 1, True): 1})
    figures = spec_figures(SpecCounts(runs, Counter(), {}), results=4, deepest=3)
    assert figures["acceptance_per_position"] == [0.75, 0.75, 0.0]


def test_tokens_behind_an_end_are_not_counted() -> None:
    """Field report E6: [d1, d2, EOS, d4, d5, bonus] is 3 tokens, not 6."""
    counts = SpecCounts(Counter({Run(6, 5, 5, 3, True): 1}), Counter(), {})
    figures = spec_figures(counts, results=1, deepest=5)
    assert (figures["emitted"], figures["accepted"]) == (3, 3)
    assert figures["acceptance_per_position"] == [1.0, 1.0, 1.0]


def test_differences_and_sums_of_counts() -> None:
    """Field report M4: what ran before never leaks in."""
    before = SpecCounts(Counter({Run(5, 4, 0, 1, True): 2}), Counter({5: 2}), {"step": 1.0})
    after = SpecCounts(RUNS, Counter({5: 12}), {"step": 3.0, "draft": 0.5})
    grown = after.since(before)
    assert grown.runs[Run(5, 4, 0, 1, True)] == 2
    assert (grown.widths, grown.stages) == (Counter({5: 10}), {"step": 2.0, "draft": 0.5})
    both = NOTHING + grown + grown
    assert both.widths == Counter({5: 20})
    assert both.stages == {"step": 4.0, "draft": 1.0}


def test_time_shares_add_up() -> None:
    shares = time_shares({"step": 8.0, "learn": 2.0, "draft": 3.0, "verify": 4.0})
    assert shares == {"draft": 0.3, "verify": 0.4, "learn": 0.2, "other": pytest.approx(0.1)}


def test_stages_are_timed_only_when_asked() -> None:
    stages = StageTimes()
    with stages.stage("draft"):
        time.sleep(0.002)
    assert stages.seconds() == {}
    stages.on = True
    for _ in range(2):
        with stages.stage("draft"):
            time.sleep(0.002)
    assert 0.004 <= stages.seconds()["draft"] < 0.1


def answers(prompts: list[list[int]], params: SamplingParams) -> dict[tuple[int, ...], list[int]]:
    with make(*TINY, "overlap=none") as llm:
        outputs = llm.generate(prompts, params)
    return {tuple(p): [*p, *o.completions[0].token_ids] for p, o in zip(prompts, outputs, strict=True)}


@pytest.mark.parametrize("loop", ["none", "future"])
def test_an_engine_counts_what_its_users_got(loop: str) -> None:
    """Right drafts, 11 tokens an answer: after the prefill's one, runs of 4, 4 and 2 (cut by the length)."""
    prompts = [[5, 6, 7], [70, 71]]
    params = SamplingParams(max_tokens=11, ignore_eos=True)
    drafter = Scripted(answers(prompts, params), 512, drafts=3, script="right")
    with make(*TINY, f"overlap={loop}", parts={"speculator": drafter}) as llm:
        llm.metrics.stages.on = True
        outputs = llm.generate(prompts, params)
        counts, results = llm.metrics.spec_counts(), llm.metrics.decode_results
    figures = spec_figures(counts, results, deepest=3)
    assert sum(len(o.completions[0].token_ids) for o in outputs) == 22
    assert figures["emitted"] == 20
    assert figures["accept_length_histogram"] == {"2": 2, "4": 4}
    assert figures["acceptance_per_position"] == [1.0, 1.0, 1.0]
    assert set(counts.widths) == {4}
    shares = figures["time_shares"]
    assert shares is not None
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(share > 0 for share in shares.values())
