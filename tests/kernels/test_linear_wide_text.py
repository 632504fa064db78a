"""Who computes which tile of a gated product of many tokens: the kernels' own text on numpy, program by
program. Each result is stored once; where the gate's lines end, nothing is read of up's."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.kernel_choices.plans import EVEN, WAVES, WIDE_SIDE, Plan

SOURCE = Path(__file__).parents[2] / "kernels" / "linear_wide.py"


@dataclass
class Tensor:
    """Behind its end there are zeros, and what is stored there is lost. stored: how often each was."""

    values: np.ndarray
    block: tuple[int, ...]
    stored: np.ndarray
    lost: int = 0  # blocks that were stored behind the end
    dtype: type = float

    def load(self, place: list[int]) -> np.ndarray:
        here = tuple(slice(at, at + size) for at, size in zip(place, self.block, strict=True))
        assert min(place) >= 0
        real, block = self.values[here], np.zeros(self.block)
        block[tuple(map(slice, real.shape))] = real
        return block

    def store(self, place: list[int], values: np.ndarray) -> None:
        assert values.shape == self.block
        assert min(place) >= 0
        here = tuple(slice(at, at + size) for at, size in zip(place, self.block, strict=True))
        self.stored[here] += 1
        self.lost += not self.stored[here].size
        self.values[here] = values[tuple(map(slice, self.values[here].shape))]


def kernels(edit: Callable[[str], str]) -> tuple[dict[str, Any], SimpleNamespace]:
    """The module's names, and what its text finds as tl: program ids are set from outside."""
    tl = SimpleNamespace(
        constexpr=object, float32=float, range=range, trans=np.transpose, reshape=np.reshape,
        permute=np.transpose, zeros=lambda shape, kind: np.zeros(shape),
        dot=lambda a, b, acc, input_precision: acc + a @ b,
    )  # fmt: skip
    tree = ast.parse(edit(SOURCE.read_text()))
    future = ast.parse("from __future__ import annotations").body
    tree.body = [*future, *(line for line in tree.body if isinstance(line, ast.FunctionDef))]
    names: dict[str, Any] = {
        "tl": tl,
        "jit": lambda f=None, **_: f or (lambda g: g),
        "gated": lambda pairs, kind: pairs[..., 0] / (1 + np.exp(-pairs[..., 0])) * pairs[..., 1],
    }
    exec(compile(tree, str(SOURCE), "exec"), names)
    return names, tl


def computed(plan: Plan, tokens: int, n: int, k: int, edit: Callable[[str], str] = str) -> None:
    chance, half, lines = np.random.default_rng(n + k), n // 2, plan.block_n // 2
    x, w = (chance.integers(-2, 3, size).astype(float) / 4 for size in ((tokens, k), (2, half, k)))
    out, stored = np.full((tokens, half), np.nan), np.zeros((tokens, half), int)
    names, tl = kernels(edit)
    widths = (lines, lines // 2, lines // 4) if plan.kernel == EVEN else (lines,)
    given = [
        Tensor(x, (WIDE_SIDE, plan.block_k), stored),
        *(Tensor(w, (2, width, plan.block_k), stored) for width in widths),
        *(Tensor(out, (WIDE_SIDE, width), stored) for width in widths),
    ]
    programs = plan.programs(tokens, n)
    tl.num_programs = lambda axis: programs
    for program in random.Random(n).sample(range(programs), programs):
        tl.program_id = lambda axis, program=program: program
        names[f"_linear_{plan.kernel}"](
            *given, None, -(-tokens // WIDE_SIDE), M=WIDE_SIDE, N=n, K=k, LINES=lines, BLOCK_K=plan.block_k,
            BIAS=False, UPCAST=False,
        )  # fmt: skip
    gate, up = x @ w[0].T, x @ w[1].T
    assert (stored == 1).all(), "results that none computes, or more than one program does"
    assert plan.kernel == EVEN or not given[-1].lost, "a turn for nothing"
    np.testing.assert_allclose(out, gate / (1 + np.exp(-gate)) * up, rtol=1e-12, atol=1e-12)


def some(seed: int) -> tuple[Plan, int, int, int]:
    """turns: as tables for cards of any number of processors may have them."""
    chance = random.Random(seed)
    kernel = (WAVES, EVEN)[seed % 2]
    turns = chance.choice((1, 2, 3, 5, 100)) if kernel == WAVES else 1
    plan = Plan(kernel, chance.choice((64, 128, 256)), chance.choice((16, 64)), 8, 3, gate=True, turns=turns)
    n, k = 16 * chance.choice((1, 3, 8, 16, 17, 55, 88, 172)), 8 * chance.choice((1, 2, 3, 8, 9))
    tokens = chance.choice((65, 96, 127, 128, 129, 192, 255, 256))
    assert plan.problem(tokens, n, k) == ""
    return plan, tokens, n, k


@pytest.mark.parametrize("seed", range(60))
def test_every_result_is_stored_once(seed: int) -> None:
    computed(*some(seed))


@pytest.mark.parametrize("processors", [78, 114, 132])
@pytest.mark.parametrize("tokens", [65, 128, 129, 256])
def test_turns_for_other_cards(processors: int, tokens: int) -> None:
    """An 8B's gated product, K apart: as many turns as the card's processors need."""
    plan = Plan(WAVES, 256, 64, 8, 3, gate=True)
    turns = -(-plan.programs(tokens, 28672) // processors)
    plan = Plan(WAVES, 256, 64, 8, 3, gate=True, turns=turns)
    assert plan.programs(tokens, 28672) <= processors
    computed(plan, tokens, 28672, 64)


@pytest.mark.parametrize(
    ("kernel", "here", "wrong"),
    [
        (WAVES, "(tiles - 1 - program) // programs + 1", "tiles // programs"),
        (WAVES, "(tiles - 1 - program) // programs + 1", "(tiles - program) // programs + 1"),
        (WAVES, "turn // STEPS * programs + program", "turn // STEPS + program"),
        (WAVES, "tile % blocks * M, tile // blocks", "tile // blocks * M, tile % blocks"),
        (WAVES, "            acc = tl.zeros((M, 2 * LINES), tl.float32)\n", ""),
        (WAVES, "F + LINES - 1", "F"),
        (WAVES, "step == STEPS - 1", "step == 0"),
        (EVEN, "(LINES + HALF + QUARTER)", "2 * LINES"),
        (EVEN, "first + LINES + HALF", "first + LINES + QUARTER"),
        (EVEN, "K + BLOCK_K - 1", "K"),
    ],
)
def test_a_wrong_text_is_seen(kernel: str, here: str, wrong: str) -> None:
    plan = Plan(kernel, 64, 16, 8, 3, gate=True, turns=3 if kernel == WAVES else 1)
    met = []

    def edited(text: str) -> str:
        met.append(here in text)
        return text.replace(here, wrong)

    with pytest.raises(AssertionError):
        computed(plan, 129, 16 * 27, 72, edited)
    assert all(met)
    computed(plan, 129, 16 * 27, 72)
