"""Forced acceptance: the mean that was asked for, the same runs in any batch, marked output, no judging."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engines import TINY, make

from engine import rules
from engine.batch import ABSENT, DraftTree, Finish
from engine.compose import compose
from engine.errors import UserError
from engine.params import SamplingParams
from speculative.forced import Forced
from speculative.ops import DraftOps, draft_ops
from speculative.tree import chain

PROMPTS = [[5, 6, 7, 8], [9, 8, 7], [100, 101, 102], [42] * 9]
DUMMY = (*TINY, "spec=eagle3", "spec.load=dummy")
TREE = ("spec.topk=2", "spec.num_steps=4", "spec.num_draft_tokens=9")


def ops(mean: float) -> DraftOps:
    return draft_ops("torch", force=Forced(mean, torch.arange(1000) * 7919))


def endless(rows: int) -> Any:
    return SimpleNamespace(
        stop_ids=torch.full((rows, 2), -1, dtype=torch.int32),
        min_len=torch.zeros(rows, dtype=torch.int32),
        max_len=torch.full((rows,), 1 << 30, dtype=torch.int32),
    )


@pytest.mark.parametrize("mean", [1.0, 1.5, 2.0, 3.25, 4.9, 5.0])
def test_the_mean_of_a_chain_is_the_one_that_was_asked_for(mean: float) -> None:
    rows = torch.arange(1000)
    tree = chain(torch.randint(0, 50, (1000, 5), dtype=torch.int32))
    target = torch.full((1000, 5), 99, dtype=torch.int32)
    counts = []
    for length in range(20):
        lens = torch.full((1000,), length, dtype=torch.int32)
        found = ops(mean).settle(tree, target, lens, rows, endless(1000), None)
        assert set(found.count.tolist()) <= {int(mean), int(mean) + (mean > int(mean))}
        assert not found.finish.any()
        assert torch.equal(found.taken.n_accepted + 1, found.count)
        counts.append(found.count.double().mean().item())
    assert sum(counts) / 20 == pytest.approx(mean, abs=4 * 0.5 / 20000**0.5 + 1e-9)


def test_the_run_is_the_first_childs_path_then_the_targets_token() -> None:
    """Nodes 1 and 2 are children of the root, 3 of 1, 4 of 3; a request has only its root."""
    tokens = torch.tensor([[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]], dtype=torch.int32)
    parent = torch.tensor([[-1, 0, 0, 1, 3], [-1] + [ABSENT] * 4], dtype=torch.int32)
    target = torch.tensor([[70, 71, 72, 73, 74], [80, 81, 82, 83, 84]], dtype=torch.int32)
    lens, rows = torch.zeros(2, dtype=torch.int32), torch.arange(2)
    found = ops(3.0).settle(DraftTree(tokens, parent), target, lens, rows, endless(2), None)
    taken, count = found.taken, found.count
    assert taken.accept_index.tolist() == [[0, 1, 3, -1, -1], [0, -1, -1, -1, -1]]
    assert [run[:n] for run, n in zip(taken.emitted.tolist(), count.tolist(), strict=True)] == [
        [11, 13, 73],
        [80],
    ]


def test_forced_runs_are_still_cut_by_stop_ids_and_length() -> None:
    tree = chain(torch.tensor([[1, 2, 3, 4, 5]] * 2, dtype=torch.int32))
    target = torch.full((2, 5), 9, dtype=torch.int32)
    ends = endless(2)
    ends.stop_ids[0, 0] = 3
    ends.max_len[1] = 4
    lens = torch.zeros(2, dtype=torch.int32)
    found = ops(5.0).settle(tree, target, lens, torch.arange(2), ends, None)
    assert found.count.tolist() == [2, 3]
    assert found.finish.tolist() == [Finish.STOP, Finish.LENGTH]


@pytest.mark.parametrize("overrides", [(), TREE])
@pytest.mark.parametrize("mean", [1.0, 2.5, 4.0])
def test_an_engine_reaches_the_mean_and_marks_its_output(overrides: tuple[str, ...], mean: float) -> None:
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    with make(*DUMMY, *overrides, f"spec.simulate_accept_length={mean}") as llm:
        outputs = llm.generate(PROMPTS, params)
        llm.check()
        counts = llm.metrics.snapshot()
    assert {output.simulated for output in outputs} == {mean}
    assert counts["decode_tokens"] / counts["decode_results"] == pytest.approx(mean, rel=0.06)


def test_a_requests_runs_do_not_depend_on_its_batch_or_the_loop() -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True, seed=11)
    found = []
    for batch, loop in ((PROMPTS, "future"), (PROMPTS[:1], "future"), (PROMPTS[:1], "none")):
        with make(*DUMMY, "spec.simulate_accept_length=2.5", f"overlap={loop}") as llm:
            found.append(llm.generate(batch, params)[0].completions[0].token_ids)
    assert found[0] == found[1] == found[2]


def test_real_output_is_not_marked() -> None:
    with make(*TINY) as llm:
        assert llm.generate([[1, 2]], SamplingParams(max_tokens=2))[0].simulated is None


@pytest.mark.parametrize("value", ["0.5", "5.5", "-1"])
def test_lengths_that_no_step_can_emit_are_refused(value: str) -> None:
    with pytest.raises(UserError, match="simulate_accept_length"):
        make(*DUMMY, f"spec.simulate_accept_length={value}")


def test_verify_refuses_made_up_output_by_name() -> None:
    resolved = compose(["task=verify", *DUMMY, "spec.simulate_accept_length=2"])
    found = [line for line in rules.violations(resolved) if "simulate_accept_length=2" in line]
    assert len(found) == 1
    assert "task=verify" in found[0]
    assert "task=bench" in found[0]
    assert not rules.violations(compose(["task=bench", *DUMMY, "spec.simulate_accept_length=2"]))
