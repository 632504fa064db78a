"""Random draft trees, runs and their ends, for the tests of a step's operations on drafts."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from engine.batch import ABSENT, ROOT, DraftTree

CUDA = torch.cuda.is_available()
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])
CPU = pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="Triton is compiled in this process"))
devices = pytest.mark.parametrize("device", [CPU, GPU])
widths = pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 11, 16])
STOPS = 3  # stop ids a row
VOCAB = 4  # few tokens: siblings repeat each other, drafts get accepted


def random_parents(width: int, rng: random.Random) -> list[int]:
    """Chains, bushes and mixtures; absent nodes, and now and then a node below one."""
    chained, absent = rng.random(), rng.choice([0.0, 0.2, 0.6])
    parents = [ROOT]
    for node in range(1, width):
        parent = node - 1 if rng.random() < chained else rng.randrange(node)
        parents.append(ABSENT if rng.random() < absent else parent)
    return parents


def random_tree(batch: int, width: int, device: str, seed: int) -> DraftTree:
    rng = random.Random(seed)
    parents = [random_parents(width, rng) for _ in range(batch)]
    tokens = [[rng.randrange(VOCAB) for _ in range(width)] for _ in range(batch)]
    to = {"dtype": torch.int32, "device": device}
    return DraftTree(
        torch.tensor(tokens, **to).view(batch, width), torch.tensor(parents, **to).view(batch, width)
    )


def tokens_of(batch: int, width: int, device: str, seed: int) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (batch, width), generator=gen, dtype=torch.int32).to(device)


def random_ends(
    batch: int, width: int, device: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor, SimpleNamespace]:
    """seq_lens, rows and columns: stop ids, least and largest length before, inside and after the run."""
    rng = random.Random(seed)
    table = batch + 3
    rows = [0 if rng.random() < 0.1 else r for r in rng.sample(range(1, table), batch)]
    lens = [rng.randrange(30) for _ in range(table)]
    stops = [rng.sample(range(VOCAB), rng.randrange(STOPS)) for _ in range(table)]
    least = [n + rng.randint(-2, width + 3) for n in lens]
    most = [n + rng.randint(1, width + 4) for n in lens]
    lens[0], stops[0], least[0], most[0] = 0, [], 0, 2**31 - 1
    to = {"dtype": torch.int32, "device": device}
    columns = SimpleNamespace(
        stop_ids=torch.tensor([s + [-1] * (STOPS - len(s)) for s in stops], **to),
        min_len=torch.tensor(least, **to),
        max_len=torch.tensor(most, **to),
    )
    at = torch.tensor(rows, dtype=torch.int64, device=device)
    return torch.tensor(lens, **to)[at], at, columns
