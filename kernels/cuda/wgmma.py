"""Writes the CUDA C++ of a warpgroup's matrix products: an overload of `mma` for each width."""

from collections.abc import Iterable

TYPES = {True: "bf16", False: "f16"}


def mma(widths: Iterable[int], bfloat: bool) -> str:
    """`mma(float (&acc)[n / 2], u64 a, u64 b, int keep)` for each n of `widths`: 64 rows times n columns,
    both from shared memory (descriptors, K innermost), 16 of K; acc is added to where `keep` is not 0, else
    overwritten.

    n is a multiple of 8 up to 256. (PTX ISA, "wgmma.mma_async".)
    """
    return "".join(_overload(n, TYPES[bfloat]) for n in sorted(set(widths)))


def _overload(n: int, kind: str) -> str:
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"a product of {n} columns: wants a multiple of 8 from 8 to 256")
    count = n // 2
    names = ", ".join(f"%{i}" for i in range(count))
    values = ", ".join(f'"+f"(acc[{i}])' for i in range(count))
    product = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind}"
    return (
        f"__device__ __forceinline__ void mma(float (&acc)[{count}], u64 a, u64 b, int keep) {{\n"
        f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"\n'
        f'    "{product} {{{names}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0;\\n}}"\n'
        f'    : {values} : "l"(a), "l"(b), "r"(keep));\n}}\n'
    )
