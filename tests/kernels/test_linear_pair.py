"""The launcher of paired gated products, without a GPU: what a kernel is made of, what it is launched with,
when it is loaded. How its text computes is in test_linear_pair_text.py, its code in test_cuda_sources.py."""

from __future__ import annotations

import pytest
import torch
from fake_launch import Fake, Launched, faked
from linear_cases import CPU, EPS, operands

from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps
from backends.triton_products import Products
from engine.errors import UserError
from engine.kernel_choices.plans import NORM_GATED, Choices, Place, Plan
from engine.models.linear import DenseLinear
from kernels import linear_pair
from kernels.cuda.nvrtc import CudaCompileError
from kernels.linear import product

PAIR = Plan("pair", 256, 64, 8, 3, gate=True)
FP16, BF16 = torch.float16, torch.bfloat16
VARIANTS = [(BF16, False, 3), (BF16, True, 3), (FP16, False, 3), (FP16, True, 3), (BF16, False, 2)]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return faked(linear_pair, monkeypatch)


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("tokens", "n", "k", "grid", "steps"),
    [(256, 28672, 4096, 128, 64), (129, 2000, 520, 10, 9), (200, 3072, 576, 14, 9), (130, 448, 64, 2, 1),
     (130, 464, 72, 4, 2)],
)  # fmt: skip
def test_what_a_launch_is_given(
    fake: Fake, tokens: int, n: int, k: int, grid: int, steps: int, bias: bool
) -> None:
    """Two blocks for every 224 lines; boxes of 64 columns: 128 tokens, and a share's lines of W."""
    given = operands(tokens, n, k, dtype=BF16)
    y, stream = product(PAIR, given.x, given.w, given.bias if bias else None)
    assert (y.shape, y.dtype) == ((tokens, n // 2), BF16)
    assert stream is given.x
    ((launched, args),) = fake.kernels[BF16, bias, 3].launches
    assert launched == grid == -(-n // 2 // 224) * 2
    x, w, added, out, *numbers = args
    assert (x.at, x.asked) == (given.x.data_ptr(), ((k, tokens), (2 * (k + 16),), (64, 128), 256))
    assert (w.at, w.asked) == (given.w.data_ptr(), ((k, n), (2 * k,), (64, 224), 256))
    assert added is (given.bias if bias else given.w)
    assert out.data_ptr() == y.data_ptr()
    assert numbers == [tokens, n // 2, steps]


def test_it_starts_early_where_kernels_do(fake: Fake) -> None:
    given = operands(200, 464, 72, dtype=BF16)
    for early in ({"early": True}, {"early": False}, {}):
        product(PAIR, given.x, given.w, **early)
    assert fake.kernels[BF16, False, 3].early == [True, False, False]


def test_kernels_are_made_once_for_each_variant() -> None:
    made = {
        (dtype, bias, stages): linear_pair._kernel(Plan("pair", 256, 64, 8, stages, gate=True), dtype, bias)
        for dtype, bias, stages in VARIANTS
    }
    assert len({id(kernel) for kernel in made.values()}) == len(VARIANTS)
    assert len({kernel.source.text() for kernel in made.values()}) == len(VARIANTS)
    for (dtype, bias, stages), kernel in made.items():
        again = linear_pair._kernel(Plan("pair", 256, 64, 8, stages, gate=True), dtype, bias)
        assert again is kernel
        defines = {"BF": int(dtype == BF16), "BIAS": int(bias), "LINES": 224, "STAGES": stages}
        assert kernel.source.defines == defines
        assert (kernel.name, kernel.threads) == ("pair", 256)
        assert kernel.shared_bytes == 1024 + stages * (128 + 2 * 224) * 128


def test_on_the_meta_device_it_is_loaded_and_not_run(fake: Fake) -> None:
    """With a real weight, as in the engine; without one, as in the processes that compile for the command
    that measures, it is compiled alone: they have no device of their own."""
    for device in ("cpu", "meta"):
        x, w = (
            torch.empty(192, 72, dtype=FP16, device="meta"),
            torch.zeros(464, 72, dtype=FP16, device=device),
        )
        y, _ = product(PAIR, x, w)
        assert (y.is_meta, y.shape) == (True, (192, 232))
    (kernel,) = fake.kernels.values()
    assert (kernel.prepared, kernel.built, kernel.launches) == (1, 1, [])


def planned() -> Choices:
    return Choices({Place(NORM_GATED, "float16", tokens, 464, 72): PAIR for tokens in (192, 256)})


@CPU
def test_a_stage_normalises_and_then_launches_it(fake: Fake) -> None:
    """By the plan of its number of tokens; others are separate operations."""
    given, ops = operands(300, 464, 72, dtype=FP16), TritonOps(planned())
    linear = DenseLinear(given.w)
    for tokens in (128, 129, 192, 193, 256, 257):
        x, residual = given.x[:tokens].contiguous(), given.residual[:tokens].clone()
        y, stream = ops.norm_gated(x, residual, given.norm, EPS, linear)
        _, total = TorchOps().norm_gated(
            given.x[:tokens].clone(), given.residual[:tokens].clone(), given.norm, EPS, linear
        )
        assert y.shape == (tokens, 232)
        torch.testing.assert_close(stream, total, rtol=0, atol=0)
    counts = [args[4] for _, args in fake.kernels[FP16, False, 3].launches]
    assert counts == [129, 192, 193, 256]
    assert fake.kernels[FP16, False, 3].early == [False] * 4


def test_it_is_loaded_when_its_product_is_first_met(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pass of few tokens, which has no plan: with a bias where the product has one."""
    monkeypatch.setattr("backends.triton_products.INTERPRETED", False)
    given = operands(3, 464, 72, dtype=FP16)
    for bias in (None, given.bias):
        products = Products(planned(), early=False)
        for _ in range(2):
            assert products.site(NORM_GATED, given.x, DenseLinear(given.w, bias)) is None
        assert fake.kernels[FP16, bias is not None, 3].prepared == 2  # for 192 tokens and for 256


def test_what_does_not_compile_is_refused_by_a_sentence(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Launched) -> None:
        raise CudaCompileError("NVRTC refused pair.cu for sm_90a (error 6):\npair.cu(3): error: no")

    monkeypatch.setattr(Launched, "prepare", refuse)
    monkeypatch.setattr("backends.triton_products.INTERPRETED", False)
    given, products = operands(3, 464, 72, dtype=FP16), Products(planned(), early=False)
    with pytest.raises(UserError, match=r"norm_gated float16, 192 tokens, 464 x 72, .*NVRTC refused pair.cu"):
        products.site(NORM_GATED, given.x, DenseLinear(given.w))
