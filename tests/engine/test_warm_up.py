"""Steps before the first request: they leave no trace, and after them no kernel is compiled while serving."""

from __future__ import annotations

import pytest
import torch
from support.engines import TINY, make

from engine.compiled import COMPILED
from engine.llm import LLM
from engine.params import SamplingParams
from engine.warm_up import Limits, batch_sizes, prefill_passes, warm_up
from speculative.tree import TreeGeometry

CUDA = torch.cuda.is_available()
LIMITS = (
    "scheduler.max_running=5",
    "scheduler.chunk_tokens=64",
    "cache.max_context=256",
    "sampling.max_tokens=9",
)
PASSES = Limits(longest=64, chunk=64)
PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [9] * 40, [7, 8, 7, 8, 7]]
PARAMS = SamplingParams(max_tokens=9, ignore_eos=True)


def warm(llm: LLM) -> int:
    container = llm._container
    return warm_up(container.eager(), container.modes().widths, PASSES, llm.metrics, lambda *_: None)


def state(llm: LLM) -> list[torch.Tensor]:
    table = llm._container.table()
    pools = [llm._container.pool(), llm._container.draft_pool()]
    kv = [side for pool in pools if pool is not None for layer in pool.layers for side in (layer.k, layer.v)]
    columns = [value for value in vars(table.columns).values() if isinstance(value, torch.Tensor)]
    own = (table.tokens, table.seq_lens, table.page_table, *table.relay.values())
    return [t.clone() for t in (*own, *columns, *kv)]


DRAFT = ("spec=eagle3", "spec.load=dummy")
SPECS = pytest.mark.parametrize(
    "spec",
    [(), ("spec=ngram",), DRAFT, (*DRAFT, "spec.topk=2", "spec.num_draft_tokens=6")],
    ids=["none", "ngram", "chain", "tree"],
)


@SPECS
def test_a_warm_up_leaves_no_trace(spec: tuple[str, ...]) -> None:
    with make(*TINY, *LIMITS, *spec) as cold, make(*TINY, *LIMITS, *spec) as llm:
        before, counts = state(llm), llm.metrics.snapshot()
        steps = warm(llm)
        modes = llm._container.modes()
        assert steps == len(prefill_passes(5, PASSES)) + (5 + 2) * len(modes.widths)
        assert llm.metrics.snapshot() == counts
        assert all(torch.equal(old, new) for old, new in zip(before, state(llm), strict=True))
        expected = [o.completions[0].token_ids for o in cold.generate(PROMPTS, PARAMS)]
        assert [o.completions[0].token_ids for o in llm.generate(PROMPTS, PARAMS)] == expected


def test_progress_is_told_from_the_first_step_to_the_last() -> None:
    told: list[tuple[str, int, int]] = []
    with make(*TINY, *LIMITS) as llm:
        modes = llm._container.modes()
        count = warm_up(
            llm._container.eager(), modes.widths, PASSES, llm.metrics, lambda *news: told.append(news)
        )
    assert told == [("compiling kernels", done, count) for done in range(count + 1)]


def test_on_a_cpu_nothing_is_run() -> None:
    with make(*TINY) as llm:
        assert llm._container.warmed() == 0


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, [1]),
        (2, [1, 2]),
        (5, [1, 2, 3, 4, 5]),
        (8, [1, 2, 3, 4, 5, 6, 8]),
        (19, [1, 2, 3, 4, 5, 6, 8, 16, 19]),
        (64, [1, 2, 3, 4, 5, 6, 8, 16, 20, 32, 40, 64]),
    ],
)
def test_batch_sizes(most: int, sizes: list[int]) -> None:
    assert batch_sizes(most) == sizes
    assert batch_sizes(most, halved=True) == sorted({*sizes, *(size for size in (10, 12) if size <= most)})


def test_penalties_along_the_paths_of_a_tree_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a tree needs a kernel for them; it would be compiled at the first request with a penalty."""
    asked: list[tuple[int, int]] = []
    original = TreeGeometry.ancestors.func

    def ancestors(self: TreeGeometry) -> torch.Tensor:
        asked.append((self.tokens.shape[0], self.tokens.shape[1]))
        return original(self)

    monkeypatch.setattr(TreeGeometry, "ancestors", property(ancestors))
    with make(*TINY, *LIMITS, *DRAFT, "spec.topk=2", "spec.num_draft_tokens=6") as llm:
        warm(llm)
    assert {(1, 6), (5, 6)} <= set(asked)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
@pytest.mark.parametrize("graph", ["none", "step"])
@SPECS
def test_serving_compiles_nothing(graph: str, spec: tuple[str, ...]) -> None:
    """Field report T7: every batch size, prompts and answers of mixed lengths, greedy and drawn."""
    shape = ("model=tiny", "model.dtype=bfloat16", "attention=triton", f"graph={graph}", "device=cuda")
    limits = (
        "scheduler.max_running=33",
        "cache.max_context=1024",
        "cache.tokens=40000",
        "sampling.max_tokens=40",
    )
    with make(*shape, *limits, *spec) as llm:
        before = COMPILED.total
        for batch in range(1, 34, 4):
            prompts = [[3 + i % 7] * (1 + 37 * i % 700) for i in range(batch)]
            params = [
                SamplingParams(
                    max_tokens=3 + i % 30,
                    ignore_eos=True,
                    temperature=0.7 * (i % 2),
                    frequency_penalty=0.3 * (i % 3 == 2),
                )
                for i in range(batch)
            ]
            llm.generate(prompts, params)
        assert COMPILED.total == before
        assert llm.metrics.compiled_kernels == before
