"""What of a plan no GPU has room for, or takes minutes to compile: a table that asks for it is refused.

Bounds, not advice: what is worth a try is the tuner's business, and well within. Free of torch and Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.kernel_choices.plans import Plan

Demand = tuple[str, int, int]  # what, how much of it, the most
MOST_SHARED = 227 << 10  # bytes of a program, on the GPUs that have most
SHARED, HELD = "bytes of shared memory", "values that a thread holds"
STEPS, WORK = "steps that are written out", "operations that are written out"


def excess(plan: Plan, tokens: int, k: int, size: int) -> str:
    """Why a plan is too much for x[tokens, k], as a clause; empty when it is not. size: bytes of a weight."""
    of_kernel = {"rows": _rows, "direct": _direct}.get(plan.kernel, _tile)
    demands = [("warps", plan.warps, 32), ("split", plan.split, 64), *of_kernel(plan, tokens, k, size)]
    return next((f"{what}: {asked}, more than {most}" for what, asked, most in demands if asked > most), "")


def _rows(plan: Plan, tokens: int, k: int, size: int) -> list[Demand]:
    """All steps are written out for each token; those of the norm inside cover all of K."""
    steps = tokens * -(-k // (plan.block_k * plan.split))
    normed = tokens * plan.steps(k) if plan.norm else 0
    held = plan.weights_held()
    return [(HELD, held, 64), (STEPS, max(steps, normed), 144), (WORK, steps * held, 2560)]


def _tile(plan: Plan, tokens: int, k: int, size: int) -> list[Demand]:
    """Of wide plans too: a loop, whose beginning is written out for each stage. Work: instructions of a
    warp, without matrix units multiplications of a thread."""
    held = plan.block_n * plan.side(tokens) // (32 * plan.warps)
    work = held * plan.block_k // (64 if size < 4 else 1)
    return [
        (SHARED, plan.shared_bytes(tokens, size), MOST_SHARED),
        ("stages", plan.stages, 32),
        (HELD, held, 128),
        (WORK, work, 16384),
    ]


def _direct(plan: Plan, tokens: int, k: int, size: int) -> list[Demand]:
    """Values are of 16 bits for the most part: half of a register. Work: instructions of matrix units."""
    side = plan.side(tokens)
    share = plan.block_k // (64 * plan.warps)  # of a step, in a thread, of each row or token
    held = (plan.block_n + side) * share * plan.ahead(k) + plan.block_n * side // 8
    work = plan.turns * plan.steps(k) * plan.block_n * share * side // 16
    shared = 8 * plan.block_n * side * plan.warps  # the warps' sums
    return [(HELD, held, 512), (SHARED, shared, MOST_SHARED), (WORK, work, 2048)]
