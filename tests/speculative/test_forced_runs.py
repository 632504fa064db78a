"""Forced runs by the kernel against the torch reference: coins, walks, ends, ledger, to the bit."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from tree_cases import devices, random_ends, random_tree, tokens_of

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from engine.sampling.rng import PURPOSE_SIMULATED, RESOLUTION, salt, uniform
from speculative.accept import Ledger, Settled
from speculative.forced import Forced
from speculative.ops import DraftOps, TorchDraftOps, draft_ops
from speculative.tree import chain

KEYS = (0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF)


def keys_of(rows: int, device: str) -> torch.Tensor:
    drawn = torch.randint(-(2**62), 2**62, (rows,), generator=torch.Generator().manual_seed(rows))
    return torch.cat((torch.tensor(KEYS), drawn))[:rows].to(device)


def settled(ops: DraftOps, case: tuple, rows: int) -> tuple[Settled, Ledger]:
    tree, target, (start, where, columns) = case
    device = where.device
    ledger = Ledger(
        torch.full((rows, 512), -7, dtype=torch.int32, device=device),
        torch.full((rows,), 3, dtype=torch.int32, device=device),
    )
    return ops.settle(tree, target, start, where, columns, ledger), ledger


@devices
@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize(
    ("width", "mean"), [(1, 1.0), (2, 1.5), (5, 1.0), (5, 3.4), (5, 5.0), (11, 2.75), (16, 9.999)]
)
@pytest.mark.parametrize("batch", [0, 1, 40])
def test_the_kernel_gives_what_the_reference_gives(
    device: str, kind: str, width: int, mean: float, batch: int
) -> None:
    tree = random_tree(batch, width, device, seed=width)
    if kind == "chain":
        tree = chain(tree.tokens)
    ends = random_ends(batch, width, device, seed=batch)
    case = (tree, tokens_of(batch, width, device, seed=7), ends)
    rows = max(len(ends[2].min_len), batch + 1)
    force = Forced(mean, keys_of(rows, device))
    (ours, into), (theirs, expected) = (
        settled(ops, case, rows) for ops in (draft_ops("triton", force=force), TorchDraftOps(force))
    )
    for name in ("accept_index", "n_accepted", "emitted"):
        assert torch.equal(getattr(ours.taken, name), getattr(theirs.taken, name)), name
    assert torch.equal(ours.packed, theirs.packed)
    # Requests of padding share row 0: which of them writes it last is nobody's business.
    assert torch.equal(into.seq_lens[1:], expected.seq_lens[1:])
    assert torch.equal(into.tokens[1:], expected.tokens[1:])


@devices
@pytest.mark.parametrize("kind", ["torch", "triton"])
def test_drawn_drafts_are_forced_by_the_first_coin(device: str, kind: str) -> None:
    """The target's distributions all lie on one token, which no draft is."""
    pair = chain(torch.tensor([[1, 2, 3]] * 2, dtype=torch.int32, device=device))
    tree = replace(pair, probs=torch.full((2, 2, 8), 0.125, device=device))
    target = torch.zeros(2, 3, 8, device=device)
    target[..., 6] = 1
    coins = torch.tensor([[0.2, 0.9, 0.9], [0.6, 0.1, 0.1]], dtype=torch.float64, device=device)
    taken = draft_ops(kind, force=Forced(2.5, keys_of(2, device))).accept_ratio(tree, target, coins, coins)
    assert taken.n_accepted.tolist() == [2, 1]
    assert taken.emitted.tolist() == [[2, 3, 6], [2, 6, 0]]


@devices
@pytest.mark.parametrize("position", [1, 2, 77, 131_072, 2**31 - 1])
def test_a_kernels_coins_are_those_of_the_sampler(device: str, position: int) -> None:
    """All bits: a run is longer for every chance above the bits of a coin, and for none at or below them."""
    from kernels.accept_tree import Force, accept_tree
    from kernels.run_ends import Ends

    keys = torch.tensor(KEYS, device=device)
    coins = uniform(keys, torch.full_like(keys, position), PURPOSE_SIMULATED)
    to = {"dtype": torch.int32, "device": device}
    pair = chain(torch.tensor([[4, 5]], **to))
    none = torch.full((len(KEYS), 1), -1, **to)
    lens, most = torch.tensor([position - 1], **to), torch.full((len(KEYS),), 2**30, **to)
    for row, coin in enumerate(coins.tolist()):
        bits = int(Fraction(coin) * (1 << RESOLUTION) - Fraction(1, 2))
        ends = Ends(lens, torch.tensor([row], device=device), none, torch.zeros_like(most), most)
        for chance, longer in ((bits, 0), (bits + 1, 1)):
            force = Force(0, chance, keys, salt(PURPOSE_SIMULATED))
            walk = accept_tree(pair.tokens, pair.parent, pair.tokens, ends, force=force)
            assert walk.column(2).tolist() == [longer]


@pytest.mark.parametrize("mean", [1.0, 1.5, 1.1, 2.999999, 1 + 2.0**-52, 2 - 2.0**-52, 7.25])
def test_a_chance_of_bits_decides_as_the_share_does(mean: float) -> None:
    force = Forced(mean, torch.zeros(1, dtype=torch.int64))
    edge = force.chance
    for bits in {max(edge - 1, 0), min(edge, (1 << RESOLUTION) - 1), 0, (1 << RESOLUTION) - 1}:
        coin = torch.tensor([(bits + 0.5) * 2.0**-RESOLUTION], dtype=torch.float64)
        assert (bits < edge) == (force.drafts(coin).item() > force.least)
