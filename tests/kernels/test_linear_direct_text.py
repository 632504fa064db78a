"""The direct kernel has no interpreter: its text is checked on numpy, its layouts on a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import ceil

import numpy as np
import pytest
from direct_emulation import Machine, Operand, constants, kernel

from engine.kernel_choices.plans import DIRECT, Plan

PADDING = (0, 3, 8)  # columns between the rows of x


def computed(
    plan: Plan, tokens: int, n: int, k: int, bias: bool, padding: int, edit: Callable[[str], str] = str
) -> None:
    """All programs of a product: each weight is read once, each output written once, and right."""
    machine, values, row = Machine(), np.random.default_rng(n * k), k + padding
    x, w, b = (values.integers(-3, 4, size).astype(float) for size in (tokens * row, n * k, n))
    outputs = n // 2 if plan.gate else n
    given = [
        Operand(tokens * row - padding, x.__getitem__),
        Operand(n * k, w.__getitem__, early=True),
        Operand(n, b.__getitem__),
        Operand(tokens * outputs, x.__getitem__),
    ]
    run = kernel(machine, edit)
    for program in range(ceil(n / plan.block_n / plan.turns)):
        machine.program, machine.waited = program, False
        run(*given, tokens, row, **constants(plan, tokens, n, k, bias))
    y = x.reshape(tokens, row)[:, :k] @ w.reshape(n, k).T + (b if bias else 0)
    if plan.gate:
        y = y[:, :outputs] / (1 + np.exp(-y[:, :outputs])) * y[:, outputs:]
    assert (given[1].times_touched() == 1).all()
    assert (given[3].times_touched() == 1).all()
    out = np.empty(tokens * outputs)
    out[np.concatenate(given[3].touched)] = np.concatenate(given[3].stored)
    np.testing.assert_allclose(out.reshape(tokens, outputs), y, rtol=1e-9, atol=1e-9)


def some(seed: int) -> tuple[Plan, int, int, int, bool, int]:
    """A plan and a product that it can compute, of sizes that divide each other or do not."""
    chance = random.Random(seed)
    while True:
        warps, gate = chance.choice((1, 2, 4, 8)), chance.random() < 0.4
        plan = Plan(
            DIRECT, chance.choice((8, 16, 32, 64)), warps * chance.choice((128, 256, 512)), warps,
            chance.choice((1, 2, 3, 4, 7, 50)), gate=gate, turns=chance.choice((1, 1, 2, 3, 5, 20)),
        )  # fmt: skip
        n = chance.choice((2, 8, 16, 30, 34, 50, 64, 66, 100, 130, 258)) - (
            not gate and chance.random() < 0.3
        )
        k = chance.choice((8, 32, 40, 64, 72, 96, 128, 136, 200, 576, 1000, 1024, 1504))
        tokens = chance.randint(1, 16)
        if not plan.problem(tokens, n, k):
            return plan, tokens, n, k, chance.random() < 0.5, chance.choice(PADDING)


@pytest.mark.parametrize("seed", range(40))
def test_products_of_any_size(seed: int) -> None:
    computed(*some(seed))


@pytest.mark.parametrize(
    ("here", "wrong"),
    [
        ("(k // 32) * 64 + k % 32", "(k // 32) * 32 + k % 32"),
        ("(turn + 2) * SPAN > OUT", "(turn + 1) * SPAN > OUT"),
        ("(step + AHEAD) % STEPS", "step + AHEAD"),
        ("then + OUT * K", "then"),
        ("rest = K - step * BLOCK_K", "rest = K"),
        ("row % 2 == 0, both", "row % 2 == 1, both"),
    ],
)
def test_a_wrong_index_is_seen(here: str, wrong: str) -> None:
    def edited(text: str) -> str:
        assert here in text
        return text.replace(here, wrong)

    plan = Plan(DIRECT, 16, 256, 2, 2, gate=True, turns=3)
    computed(plan, 5, 100, 1200, bias=True, padding=8)
    with pytest.raises(AssertionError):
        computed(plan, 5, 100, 1200, bias=True, padding=8, edit=edited)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("wide", [True, False])
def test_rows_past_two_to_the_31_elements(gate: bool, wide: bool) -> None:
    """The last program, whose rows lie behind 2^31; without 64-bit offsets it reads elsewhere."""
    n, k, plan = 600_000, 4096, Plan(DIRECT, 16, 512, 4, 2, gate=gate)
    machine, first = Machine(), (300_000 if gate else 600_000) - (8 if gate else 16)
    weight = Operand(n * k, lambda at: np.where(at % k == 7, at // k, 0).astype(float), early=True)
    x, none = Operand(k, np.ones_like), Operand(0, np.ones_like)
    out = Operand(n, np.ones_like)
    run = kernel(machine, lambda text: text if wide else text.replace("if WIDE:", "if False:"))
    machine.program = first // (8 if gate else 16)

    def go() -> None:
        run(x, weight, none, out, 1, k, **constants(plan, 1, n, k, bias=False))

    if not wide and not gate:
        with pytest.raises(AssertionError, match="addresses"):
            go()
        return
    go()
    rows = np.arange(first, first + (8 if gate else 16))
    assert (np.concatenate(out.touched) == rows).all()
    expected = rows * (rows + 300_000.0) if gate else rows
    np.testing.assert_allclose(np.concatenate(out.stored), expected)
