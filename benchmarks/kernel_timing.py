"""Times stages of a layer on a GPU: CUDA graphs of many products whose weights lie beyond the L2 cache.

Knows places and plans; nothing of how plans are searched.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import torch
from torch import Tensor

from backends.triton_ops import TritonOps
from engine.kernel_choices.plans import (
    BEST,
    LINEAR,
    MOST_TOKENS,
    NO_CHOICES,
    NORM_GATED,
    NORM_LINEAR,
    TILE,
    Choices,
    Place,
    Plan,
)
from engine.models.linear import DenseLinear
from speculative.eagle3.shortlist import DenseBest

CACHES = 4  # how many times the L2 cache the rotated weights are
LEAST = 12  # products in a graph
ROUNDS = 7
LASTING = 0.3  # seconds of a turn above 64 tokens: a card at its limit of power settles on a clock
EPS = 1e-5
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 4e-3}  # of the largest result


@dataclass(frozen=True)
class Operands:
    """Of one place: x and residual [T, K], norm [K], weights [N, K] that are used in turn, ids [N]."""

    x: Tensor
    residual: Tensor
    norm: Tensor
    weights: Sequence[DenseLinear]
    ids: Tensor


class StageTimer:
    """Runs one place by the library or by plans. early: dependent launch, as the engine would."""

    def __init__(self, place: Place, pool: Tensor, early: bool, compilers: ProcessPoolExecutor) -> None:
        """pool: values that weights are views of."""
        self._place, self._early, self._compilers = place, early, compilers
        self._operands = _operands(place, pool)

    def quick(self, plans: Sequence[Plan]) -> list[float]:
        """Median seconds of a product each; infinite where a plan cannot run or errs."""
        compiled = self._compilers.map(partial(compile_plan, self._place, self._early), plans)
        return [
            self._rough(plan) if works else float("inf") for plan, works in zip(plans, compiled, strict=True)
        ]

    def fair(self, plans: Sequence[Plan | None]) -> list[list[float]]:
        """ROUNDS times of each, turn by turn; of many tokens each at the clock that its power leaves."""
        graphs = [self._graph(plan) for plan in plans]
        lasting = LASTING if self._place.tokens > MOST_TOKENS[TILE] else 0.0
        rounds = [[self._settled(graph, lasting) for graph in graphs] for _ in range(ROUNDS)]
        return [list(times) for times in zip(*rounds, strict=True)]

    def _rough(self, plan: Plan) -> float:
        try:
            if not self._is_right(plan):
                return float("inf")
            graph = self._graph(plan)
        except Exception as error:  # what does not fit the card fails in many ways, when it is first launched
            if "out of resource" not in str(error).lower():
                raise
            return float("inf")
        return statistics.median(self._seconds(graph) for _ in range(3))

    def _is_right(self, plan: Plan) -> bool:
        """Close to the library's result, and the same to the bit a second time."""
        given = self._operands
        expected, found, again = (
            self._run(ops, 0, given.x.clone(), given.residual)
            for ops in (self._ops(None), self._ops(plan), self._ops(plan))
        )
        if self._place.stage == BEST:
            return torch.equal(found, again)  # close scores may change places
        limit = TOLERANCE[self._place.dtype] * expected.abs().max().item()
        return torch.equal(found, again) and (found - expected).abs().max().item() <= limit

    def _ops(self, plan: Plan | None) -> TritonOps:
        choices = NO_CHOICES if plan is None else Choices({self._place: plan})
        return TritonOps(choices, early=self._early)

    def _run(self, ops: TritonOps, number: int, x: Tensor, residual: Tensor) -> Tensor:
        given = self._operands
        linear = given.weights[number % len(given.weights)]
        stage: dict[str, Callable[[], Tensor]] = {
            LINEAR: lambda: ops.linear(x, linear),
            NORM_LINEAR: lambda: ops.norm_linear(x, residual, given.norm, EPS, linear)[0],
            NORM_GATED: lambda: ops.norm_gated(x, residual, given.norm, EPS, linear)[0],
            BEST: lambda: ops.best(x, given.norm, EPS, DenseBest(linear), given.ids),
        }
        return stage[self._place.stage]()

    def _graph(self, plan: Plan | None) -> torch.cuda.CUDAGraph:
        ops, x = self._ops(plan), self._operands.x.clone()
        nothing = torch.zeros_like(x)  # as residual: the sum may be written over x, again and again
        self._run(ops, 0, x, nothing)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(self._products):
                self._run(ops, number, x, nothing)
        graph.replay()
        return graph

    @property
    def _products(self) -> int:
        return max(LEAST, len(self._operands.weights))

    def _settled(self, graph: torch.cuda.CUDAGraph, lasting: float) -> float:
        """A product's seconds after so many of nothing but its like."""
        end = time.perf_counter() + lasting
        while time.perf_counter() < end:
            self._seconds(graph)
        return self._seconds(graph)

    def _seconds(self, graph: torch.cuda.CUDAGraph) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / self._products


def _operands(place: Place, pool: Tensor) -> Operands:
    size = place.n * place.k
    copies = max(1, min(pool.numel() // size, 512))
    weights = [DenseLinear(pool[i * size : (i + 1) * size].view(place.n, place.k)) for i in range(copies)]
    x, residual, norm = (
        torch.randn(shape, dtype=pool.dtype, device=pool.device)
        for shape in ((place.tokens, place.k), (place.tokens, place.k), (place.k,))
    )
    return Operands(x, residual, norm, weights, torch.arange(place.n, dtype=torch.int32, device=pool.device))


def weight_pool(places: Sequence[Place], dtype: str, device: torch.device) -> Tensor:
    """Random values enough for the largest weight, and for more weights than the L2 cache holds."""
    largest = max(place.n * place.k for place in places)
    size: torch.dtype = getattr(torch, dtype)
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    count = max(largest, CACHES * cache // size.itemsize)
    return torch.randn(count, dtype=size, device=device).mul_(0.02)


def compile_plan(place: Place, early: bool, plan: Plan) -> bool:
    """Compile a plan's kernels into Triton's cache, in whatever process; False where they do not compile."""
    from kernels.linear import Norm, product
    from kernels.linear_best import best_output

    dtype = getattr(torch, place.dtype)
    x, weight = (torch.empty(rows, place.k, dtype=dtype, device="meta") for rows in (place.tokens, place.n))
    added = place.stage in (NORM_LINEAR, NORM_GATED)
    norm = Norm(weight[0], EPS, x if added else None) if plan.norm else None
    try:
        if place.stage == BEST:
            ids = torch.empty(0, dtype=torch.int32, device="meta")
            best_output(plan, x, weight, ids, norm, early=early)
        else:
            product(plan, x, weight, None, norm, early=early)
    except Exception as error:  # Triton's compiler has no common error
        print(
            f"{plan} does not compile: {next(iter(str(error).splitlines()), type(error))}",
            flush=True,
        )
        return False
    return True


def compilers(workers: int) -> ProcessPoolExecutor:
    """Processes that compile beside this one; they share Triton's cache on disk. They start at once, since
    each takes seconds to import what it needs."""
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    for _ in range(workers):
        pool.submit(_prepare)
    return pool


def _prepare() -> None:
    importlib.import_module("kernels.linear_best")
