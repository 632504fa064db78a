"""The launcher of products by halves, without a GPU: what a kernel is made of, what it is launched with,
when it is loaded. How its text computes: test_linear_halves_text.py; its code: test_cuda_sources.py."""

from __future__ import annotations

import pytest
import torch
from fake_launch import Fake, Launched, faked
from linear_cases import CPU, EPS, operands

from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps
from backends.triton_products import Products
from engine.errors import UserError
from engine.kernel_choices.plans import LINEAR, NORM_GATED, NORM_LINEAR, Choices, Place, Plan
from engine.models.linear import DenseLinear
from kernels import linear_halves
from kernels.cuda.nvrtc import CudaCompileError
from kernels.linear import product

HALVES = Plan("halves", 128, 64, 8, 6)
FP16, BF16 = torch.float16, torch.bfloat16
VARIANTS = [(BF16, False, 6), (BF16, True, 6), (FP16, False, 6), (FP16, True, 6), (BF16, False, 2)]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return faked(linear_halves, monkeypatch)


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("tokens", "n", "k", "grid", "steps"),
    [(256, 4096, 14336, 128, 112), (129, 4096, 4096, 128, 32), (200, 1000, 520, 32, 5), (130, 136, 72, 8, 1),
     (255, 128, 128, 4, 1), (192, 128, 136, 4, 2), (129, 8, 8, 4, 1), (256, 6144, 4096, 192, 32)],
)  # fmt: skip
def test_what_a_launch_is_given(
    fake: Fake, tokens: int, n: int, k: int, grid: int, steps: int, bias: bool
) -> None:
    """Two blocks for every 128 lines and 128 tokens; boxes of 64 columns; of an odd number of steps the
    second half has the last one to spare."""
    given = operands(tokens, n, k, dtype=BF16)
    y, stream = product(HALVES, given.x, given.w, given.bias if bias else None)
    assert (y.shape, y.dtype) == ((tokens, n), BF16)
    assert stream is given.x
    ((launched, args),) = fake.kernels[BF16, bias, 6].launches
    assert launched == grid == 2 * -(-n // 128) * 2
    x, w, added, out, *numbers = args
    assert (x.at, x.asked[:3]) == (given.x.data_ptr(), ((k, tokens), (2 * (k + 16),), (64, 128)))
    assert (w.at, w.asked[:3]) == (given.w.data_ptr(), ((k, n), (2 * k,), (64, 128)))
    assert added is (given.bias if bias else given.w)
    assert out.data_ptr() == y.data_ptr()
    assert numbers == [tokens, n, steps, 2]
    assert 2 * steps * 64 >= k > (2 * steps - 2) * 64


def test_it_never_starts_early(fake: Fake) -> None:
    """Its text waits for no kernel in front."""
    given = operands(200, 136, 72, dtype=BF16)
    product(HALVES, given.x, given.w, early=True)
    assert fake.kernels[BF16, False, 6].early == [False]


def test_kernels_are_made_once_for_each_variant() -> None:
    made = {
        (dtype, bias, stages): linear_halves._kernel(Plan("halves", 128, 64, 8, stages), dtype, bias)
        for dtype, bias, stages in VARIANTS
    }
    assert len({id(kernel) for kernel in made.values()}) == len(VARIANTS)
    assert len({kernel.source.text() for kernel in made.values()}) == len(VARIANTS)
    for (dtype, bias, stages), kernel in made.items():
        assert linear_halves._kernel(Plan("halves", 128, 64, 8, stages), dtype, bias) is kernel
        defines = {"BF": int(dtype == BF16), "BIAS": int(bias), "LINES": 128, "STAGES": stages}
        assert kernel.source.defines == defines
        assert (kernel.name, kernel.threads) == ("halves", 384)
        # Room for 64 sums, of which half are handed over, of 256 threads.
        assert kernel.shared_bytes == 1024 + stages * (128 + 128) * 128 + 256 * 32 * 4


def test_on_the_meta_device_it_is_loaded_and_not_run(fake: Fake) -> None:
    """With a real weight, as in the engine; without one, as in the processes that compile for the command
    that measures, it is compiled alone: they have no device of their own."""
    for device in ("cpu", "meta"):
        x, w = (
            torch.empty(192, 72, dtype=FP16, device="meta"),
            torch.zeros(136, 72, dtype=FP16, device=device),
        )
        y, _ = product(HALVES, x, w)
        assert (y.is_meta, y.shape) == (True, (192, 136))
    (kernel,) = fake.kernels.values()
    assert (kernel.prepared, kernel.built, kernel.launches) == (1, 1, [])


def planned(stage: str) -> Choices:
    return Choices({Place(stage, "float16", tokens, 136, 72): HALVES for tokens in (192, 256)})


@CPU
def test_a_product_alone_launches_it_by_its_number_of_tokens(fake: Fake) -> None:
    """Fewer and more are torch's."""
    given, ops = operands(300, 136, 72, dtype=FP16), TritonOps(planned(LINEAR))
    linear = DenseLinear(given.w, given.bias)
    for tokens in (128, 129, 192, 193, 256, 257):
        x = given.x[:tokens].contiguous()
        y = ops.linear(x, linear)
        assert y.shape == (tokens, 136)
        if not 129 <= tokens <= 256:
            assert torch.equal(y, TorchOps().linear(x, linear))
    assert [args[4] for _, args in fake.kernels[FP16, True, 6].launches] == [129, 192, 193, 256]


@CPU
def test_a_stage_normalises_and_then_launches_it(fake: Fake) -> None:
    """In a stage with SwiGLU behind it too, which is an operation of its own."""
    given, linear = operands(200, 136, 72, dtype=FP16), DenseLinear(operands(1, 136, 72, dtype=FP16).w)
    for stage, width in ((NORM_LINEAR, 136), (NORM_GATED, 68)):
        ops = TritonOps(planned(stage))
        run, other = (
            each.norm_linear if stage == NORM_LINEAR else each.norm_gated for each in (ops, TorchOps())
        )
        x, residual = given.x.contiguous(), given.residual.clone()
        y, stream = run(x, residual, given.norm, EPS, linear)
        _, total = other(given.x.clone(), given.residual.clone(), given.norm, EPS, linear)
        assert y.shape == (200, width)
        torch.testing.assert_close(stream, total, rtol=0, atol=0)
    counts = [args[4] for _, args in fake.kernels[FP16, False, 6].launches]
    assert counts == [200, 200]


def test_it_is_loaded_when_its_product_is_first_met(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pass of few tokens, which has no plan: with a bias where the product has one."""
    monkeypatch.setattr("backends.triton_products.INTERPRETED", False)
    given = operands(3, 136, 72, dtype=FP16)
    for bias in (None, given.bias):
        products = Products(planned(LINEAR), early=False)
        for _ in range(2):
            assert products.site(LINEAR, given.x, DenseLinear(given.w, bias)) is None
        assert fake.kernels[FP16, bias is not None, 6].prepared == 2  # for 192 tokens and for 256


def test_what_does_not_compile_is_refused_by_a_sentence(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Launched) -> None:
        raise CudaCompileError("NVRTC refused halves.cu for sm_90a (error 6):\nhalves.cu(3): error: no")

    monkeypatch.setattr(Launched, "prepare", refuse)
    monkeypatch.setattr("backends.triton_products.INTERPRETED", False)
    given, products = operands(3, 136, 72, dtype=FP16), Products(planned(LINEAR), early=False)
    with pytest.raises(UserError, match=r"linear float16, 192 tokens, 136 x 72, .*NVRTC refused halves.cu"):
        products.site(LINEAR, given.x, DenseLinear(given.w))
