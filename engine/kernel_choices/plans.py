"""How a product of few tokens is computed: which kernel, and its compile-time sizes; and who decides.

Plain data, free of torch and Triton, so that tables of measured plans can be read anywhere. Knows no GPU.
Legend: T tokens, N outputs, K inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from engine.kernel_choices.limits import excess

ROWS, TILE, DIRECT = "rows", "tile", "direct"
WAVES, EVEN, PAIR, HALVES = "waves", "even", "pair", "halves"
# Most tokens: those of the rows kernel have accumulators of their own, those of the others share a tile.
MOST_TOKENS = {ROWS: 8, TILE: 64, DIRECT: 16, WAVES: 256, EVEN: 256, PAIR: 256, HALVES: 256}
LEAST_TOKENS = {PAIR: 129, HALVES: 129}  # of the others: 1
GATED = (WAVES, EVEN, PAIR)  # for gated products alone
WIDE = (*GATED, HALVES)  # for more tokens than the others take
CUDA = (PAIR, HALVES)  # in CUDA C++, which not every machine can use
_BLOCK_N = {PAIR: 256, HALVES: 128}
CUDA_SIZES = {kernel: {"block_n": n, "block_k": 64, "warps": 8, "turns": 1} for kernel, n in _BLOCK_N.items()}
WIDE_SIDE = 128  # tokens of a tile of these; there may be several
LEAN_TOKENS = 5  # up to which a pass gains by products that leave shared memory alone: 8 come out even
HELD_INPUTS = 64  # most registers of a thread in which the direct kernel keeps x from block to block
SHARE = 128  # least columns that a warp of the direct kernel reads at a time
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a weight
# Numbers of tokens that are measured: above 64 for the WIDE kernels, else the library's product serves there.
BUCKETS = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 96, 128, 192, 256)
# Buckets that a table may lack: there the next one serves, in this order.
LATER = {32: 64, 16: 32, 6: 8, 5: 6, 4: 5, 3: 4, 2: 3}


@dataclass(frozen=True)
class Plan:
    """One way to compute x[T, K] @ W[N, K]^T.

    kernel: "rows" multiplies and adds whole rows of W, T <= 8; "tile" uses matrix units, T <= 64; "direct"
    too, T <= 16, on 16-bit weights that go from memory into registers, without split and without the norm.
    "waves", "even" and "pair" compute gated products alone, T <= 256, on 16-bit weights: programs of "waves"
    take `turns` whole tiles one after another, those of "even" a tile, half and a quarter of one each; those
    of "pair", as large a share, in twos that have 128 tokens each (T > 128) and read W for each other.
    "halves" computes others, 128 < T <= 256: programs in twos that have half of K each.
    block_n, block_k: rows and columns of W at a time, powers of two. stages: how many of these are in flight
    (all but "rows"). turns: blocks of rows that a program computes one after another ("direct", "waves").
    split: parts of K that are summed by a second kernel, in order. swap: the tile's rows are W's, not x's.
    norm, gate: the norm before, and SwiGLU's element-wise half after, are computed in the same kernel.
    """

    kernel: str
    block_n: int
    block_k: int
    warps: int = 4
    stages: int = 3
    split: int = 1
    swap: bool = False
    norm: bool = False
    gate: bool = False
    turns: int = 1

    def weights_held(self) -> int:
        """Weights of a block in each thread's registers, at least 1 ("rows")."""
        return max(1, self.block_n * self.block_k // (32 * self.warps))

    def steps(self, k: int) -> int:
        """Blocks of columns that cover K."""
        return -(-k // self.block_k)

    def ahead(self, k: int) -> int:
        """Of those, how many are in flight."""
        return min(self.stages, self.steps(k))

    def side(self, tokens: int) -> int:
        """Tokens of a tile, some of which may be none (all but "rows")."""
        if self.kernel in WIDE:
            return WIDE_SIDE
        return max(8 if self.kernel == DIRECT else 16, 1 << (tokens - 1).bit_length())

    def programs(self, tokens: int, n: int) -> int:
        """Programs of a launch."""
        if self.kernel not in WIDE:
            return -(-n // (self.block_n * self.turns)) * self.split
        blocks = -(-tokens // WIDE_SIDE)
        if self.kernel == HALVES:
            return 2 * -(-n // self.block_n) * blocks
        tiles = -(-n // 2 // self.share) * blocks
        return -(-tiles // self.turns)

    @property
    def share(self) -> int:
        """Lines of the gate, and as many of up, that a program has at a time (GATED kernels)."""
        return self.block_n // 2 if self.kernel == WAVES else self.block_n * 7 // 8

    def shared_bytes(self, tokens: int, size: int) -> int:
        """Shared memory of a program ("tile", and WIDE ones): operands in flight, of the latter a tile of
        results too, which "pair" leaves in their place. size: bytes of a weight."""
        rows = 2 * self.share if self.kernel == PAIR else self.block_n
        results = self.block_n // (1 + self.gate) if self.kernel in WIDE and self.kernel != PAIR else 0
        return (self.stages * (rows + self.side(tokens)) * self.block_k + results * self.side(tokens)) * size

    def inputs_held(self, tokens: int, k: int) -> int:
        """Registers of a thread in which x stays from block to block, 0 where it is read again ("direct")."""
        held = self.side(tokens) * self.steps(k) * self.block_k // (64 * self.warps)
        return held if self.turns > 1 and held <= HELD_INPUTS else 0

    def problem(self, tokens: int, n: int, k: int) -> str:
        """Why the plan cannot compute such a product, as a clause; empty when it can."""
        most = MOST_TOKENS.get(self.kernel)
        if most is None:
            return f"kernel {self.kernel!r} is none of {', '.join(MOST_TOKENS)}"
        least = LEAST_TOKENS.get(self.kernel, 1)
        if not least <= tokens <= most:
            return f"kernel {self.kernel} takes {least} to {most} tokens, not {tokens}"
        return self._size_problem(n, k)

    def _size_problem(self, n: int, k: int) -> str:
        sizes = {"block_n": self.block_n, "block_k": self.block_k, "warps": self.warps}
        odd = [name for name, size in sizes.items() if size < 1 or size & (size - 1)]
        if odd:
            return f"{odd[0]}={sizes[odd[0]]} is no power of two"
        if self.kernel == TILE and min(self.block_n, self.block_k) < 16:
            return "tiles of the matrix units have 16 rows and columns at least"
        if self.gate and (n % 2 or self.block_n < 2):
            return "a gated product has an even number of outputs, two at least in a block"
        if self.kernel == DIRECT and (problem := self._direct_problem(k)):
            return problem
        if self.kernel in WIDE and (problem := self._wide_problem(n, k)):
            return problem
        if self.stages < 1 or not 1 <= self.split <= self.steps(k):
            inputs = f"{k} inputs in blocks of {self.block_k}"
            return f"stages={self.stages}, split={self.split} do not fit {inputs}"
        return ""

    def _direct_problem(self, k: int) -> str:
        if self.turns < 1:
            return f"turns={self.turns} is less than 1"
        if k % 8:  # it would read value by value: eight times the code, which takes a minute to compile
            return f"kernel {DIRECT} reads 8 inputs at a time, which {k} are not made of"
        least = 16 if self.gate else 8
        if self.block_n < least or self.block_k < SHARE * self.warps:
            return f"kernel {DIRECT} takes {least} rows and {SHARE} columns a warp at least"
        more = {"split": self.split > 1, "swap": self.swap, "norm": self.norm}
        return next((f"kernel {DIRECT} knows no {name}" for name, asked in more.items() if asked), "")

    def _wide_problem(self, n: int, k: int) -> str:
        if self.gate is not (self.kernel in GATED):
            takes = "no gated product" if self.gate else "gated products alone"
            return f"kernel {self.kernel} computes {takes}"
        if n % (16 if self.gate else 8) or k % 8:  # a descriptor's rows begin every 16 bytes
            return f"kernel {self.kernel} takes 8 inputs and 8 results at a time, not any {n} x {k}"
        if self.block_n < 64 or self.block_k < 16:
            return f"kernel {self.kernel} takes 64 rows and 16 columns at least"
        if self.turns < 1 or (self.kernel == EVEN and self.turns > 1):
            return f"kernel {self.kernel} cannot take turns={self.turns}"
        sizes = CUDA_SIZES.get(self.kernel, {})
        other = next((name for name, size in sizes.items() if getattr(self, name) != size), None)
        if other is not None:
            return f"kernel {self.kernel} takes {other}={sizes[other]} alone, not {getattr(self, other)}"
        if self.kernel in CUDA and self.stages < 2:  # one is read until the next has begun
            return f"kernel {self.kernel} has 2 stages at least, not {self.stages}"
        more = {"split": self.split > 1, "swap": self.swap, "norm": self.norm}
        return next((f"kernel {self.kernel} knows no {name}" for name, asked in more.items() if asked), "")


def bucket_of(tokens: int) -> int | None:
    """The smallest bucket that holds so many tokens; None above the largest."""
    return next((size for size in BUCKETS if size >= tokens), None)


@dataclass(frozen=True)
class Place:
    """A product that may be planned. stage: which operations a plan stands for, one of STAGES. dtype:
    "bfloat16", ... tokens: one of BUCKETS."""

    stage: str
    dtype: str
    tokens: int
    n: int
    k: int

    def problem(self, plan: Plan) -> str:
        """Why the plan cannot serve here, as a clause; empty when it can."""
        if self.tokens not in BUCKETS:
            return f"{self.tokens} tokens are none of {', '.join(map(str, BUCKETS))}"
        if (plan.gate and self.stage != NORM_GATED) or (plan.norm and self.stage == LINEAR):
            return f"stage {self.stage} has nothing to fuse that a plan with norm or gate computes"
        if self.stage == BEST and (plan.split > 1 or plan.kernel in (DIRECT, HALVES)):
            return f"stage {self.stage} takes no split, and not kernels {DIRECT} and {HALVES}"
        if plan.kernel in (DIRECT, *WIDE) and self.dtype not in ("bfloat16", "float16"):
            return f"kernel {plan.kernel} multiplies 16-bit weights, not {self.dtype}"
        problem = plan.problem(self.tokens, self.n, self.k)
        return problem or excess(plan, self.tokens, self.k, SIZES.get(self.dtype, 4))


LINEAR, NORM_LINEAR, NORM_GATED, BEST = "linear", "norm_linear", "norm_gated", "best"
STAGES = {
    LINEAR: "product",
    NORM_LINEAR: "residual, norm and product",
    NORM_GATED: "residual, norm, product and SwiGLU",
    BEST: "norm, head and the best outputs",
}


class Choices:
    """Which plan computes a product; None: separate operations, and the library's product (cuBLAS)."""

    def __init__(self, plans: Mapping[Place, Plan | None]) -> None:
        served = dict(plans)
        for bucket, larger in LATER.items():
            for place in [place for place in served if place.tokens == larger]:
                served.setdefault(replace(place, tokens=bucket), served[place])
        self._chosen = {
            (place.stage, place.dtype, place.tokens, place.n, place.k): plan
            for place, plan in served.items()
            if plan is not None
        }
        self._kernels: dict[tuple[str, int, tuple[int, int]], set[str | None]] = {}  # None: the library's
        for place, plan in served.items():
            key = place.dtype, place.tokens, (place.n, place.k)
            self._kernels.setdefault(key, set()).add(plan.kernel if plan else None)

    def lean(self, dtype: str, products: Collection[tuple[int, int]]) -> frozenset[int]:
        """The numbers of tokens, few, of which none of these products (N, K) goes through shared memory, so
        that a kernel between them does well to leave it to the first-level cache."""

        def without(bucket: int) -> bool:
            kernels = [self._kernels.get((dtype, bucket, product), {None}) for product in products]
            return all(each <= {ROWS, DIRECT} for each in kernels)

        return frozenset(t for t in range(1, LEAN_TOKENS + 1) if products and without(bucket_of(t) or 0))

    def plan(self, stage: str, dtype: str, tokens: int, n: int, k: int) -> Plan | None:
        """For x[tokens, k] @ W[n, k]^T."""
        bucket = bucket_of(tokens) if self._chosen and tokens else None
        return None if bucket is None else self._chosen.get((stage, dtype, bucket, n, k))

    def compiled(self, stage: str, dtype: str, n: int, k: int) -> dict[int, Plan]:
        """Tokens -> plan, of one product: all numbers of tokens that have kernels of their own. The rows
        kernel is compiled for each number, the others serve a whole bucket."""
        found: dict[int, Plan] = {}
        for below, bucket in zip((0, *BUCKETS), BUCKETS, strict=False):
            if (plan := self._chosen.get((stage, dtype, bucket, n, k))) is not None:
                first = below + 1 if plan.kernel == ROWS else bucket
                found |= dict.fromkeys(range(first, bucket + 1), plan)
        return found


NO_CHOICES = Choices({})
