"""A branch of the draft tree sees the prefix and exactly its own ancestors, whatever the page size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.eagle3 import PROMPTS, TREE, draft_of, drafter_of, engine, fresh, one_pass
from torch import Tensor

from backends.base import AttentionContext
from backends.torch_sdpa import TorchSDPA
from engine.batch import LayerKV, Mode, SeqLens
from engine.llm import LLM
from engine.params import SamplingParams
from speculative.eagle3.draft import Leaving
from speculative.eagle3.passes import Window
from speculative.views import DraftView

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


class Branches:
    """Follows every drafted branch beside the engine: a path of tokens, continued one pass at a time on a KV
    of its own. `worst`: the largest difference of any hidden state."""

    def __init__(self, llm: LLM) -> None:
        self.worst, self.nodes, self.forks = 0.0, 0, 0
        self._llm = llm
        passes = drafter_of(llm)._proposal._passes  # type: ignore[attr-defined]
        self._branch = passes.branch
        self._paths: list[list[list[int]]] = []
        passes.branch = self._compared

    def _compared(
        self, view: DraftView, positions: Tensor, tokens: Tensor, hidden: Tensor, window: Window
    ) -> Leaving:
        out: Tensor = self._branch(view, positions, tokens, hidden, window).total()
        rows, width = tokens.shape
        depth = window.seen.shape[2] // width - 1
        self._paths = [[] for _ in range(rows)] if depth == 0 else self._paths
        for b in range(rows):
            new = []
            for r in range(width):
                above = [n for n in window.seen[b, r].nonzero().flatten().tolist() if n != depth * width + r]
                nodes = [self._paths[b][n][-1] for n in above]
                new.append([*nodes, int(tokens[b, r])])
            self._paths[b] += new
            prefix = view.tokens[view.rows[b], : int(view.seq_lens.device[b]) + 1].long()
            for r, path in enumerate(new):
                assert len(path) == depth + 1, "one ancestor a level"
                self._compare(prefix, path, out[b * width + r])
            self.forks += len({tuple(path[:-1]) for path in new}) < width and depth > 0
        return Leaving(out, None)

    def _compare(self, prefix: Tensor, path: list[int], out: Tensor) -> None:
        expected = continued(self._llm, prefix, path)
        self.worst = max(self.worst, float((out - expected).abs().max()))
        self.nodes += 1


def continued(llm: LLM, prefix: Tensor, path: list[int]) -> Tensor:
    """[H] after drafting `path` behind the known tokens `prefix`, token by token."""
    draft, length = draft_of(llm), len(prefix) - 1
    kv, hidden = fresh(llm, prefix)
    room = [torch.cat((side, side.new_zeros((len(path), *side.shape[1:])))) for side in (kv.k, kv.v)]
    context = AttentionContext(
        "test", draft.num_heads, draft.num_kv_heads, draft.head_dim, draft.head_dim**-0.5, 1, 1, 1, 4096,
        torch.device("cpu"), torch.float32,
    )  # fmt: skip
    attention, state = TorchSDPA(TorchSDPA.Config(), context), hidden[-1:]
    for i, token in enumerate(path):
        at = length + i
        batch = replace(
            one_pass(torch.tensor([token])),
            mode=Mode.VERIFY,
            positions=torch.tensor([at]),
            slots=torch.tensor([at + 1]),
            seq_lens=SeqLens(torch.tensor([at], dtype=torch.int32), (at,)),
            page_table=torch.arange(1, at + 2, dtype=torch.int32).unsqueeze(0),
            width=1,
        )
        attention.init_forward_metadata(batch)
        state = draft.forward(batch, state, attention, [LayerKV(0, *room)])
    return state[0]


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("sizes", [(3, 4, 10), (2, 3, 6)])
def test_branches_equal_chains_of_their_own(sizes: tuple[int, int, int], page: int) -> None:
    topk, steps, tokens = sizes
    shape = (f"spec.topk={topk}", f"spec.num_steps={steps}", f"spec.num_draft_tokens={tokens}")
    with engine(*TREE[:3], *shape, f"cache.page_size={page}", "overlap=none") as llm:
        branches = Branches(llm)
        llm.generate(PROMPTS[:3], PARAMS)
    assert branches.worst < 1e-4
    assert branches.nodes > 20
    assert branches.forks > 0, "some level continued two children of one node"


def test_siblings_are_distinct_and_parents_come_first() -> None:
    seen: list[Any] = []
    with engine(*TREE, "overlap=none") as llm:
        drafter = drafter_of(llm)
        propose = drafter.propose
        vars(drafter)["propose"] = lambda view: seen.append(propose(view)) or seen[-1]
        llm.generate(PROMPTS[:3], PARAMS)
    for tree in seen:
        for tokens, parents in zip(tree.tokens.tolist(), tree.parent.tolist(), strict=True):
            pairs = list(zip(parents, tokens, strict=True))
            assert len(set(pairs)) == len(pairs)
            assert all(parent < i for i, parent in enumerate(parents))
    assert len(seen) > 3
