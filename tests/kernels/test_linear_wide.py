"""Gated products of 65 to 256 tokens, whole tiles in turn and even shares, against float64; as a stage, in a
recording, compiled before they are needed, and for a GPU that need not be here. What needs one is in
test_linear_wide_gpu.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from linear_cases import CPU, EPS, check_gated, expected, near, operands, random
from support.compiling import compiled
from triton.tools.tensor_descriptor import TensorDescriptor

from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps
from engine.graphs.recording import record
from engine.kernel_choices.plans import NORM_GATED, Choices, Place, Plan, bucket_of
from engine.models.linear import DenseLinear
from kernels.linear import product, start

WAVES, EVEN = (Plan(kernel, 64, 16, 4, 2, gate=True) for kernel in ("waves", "even"))
PLANS = [WAVES, replace(WAVES, turns=2), replace(WAVES, turns=3), EVEN]
# Lines of the gate (N / 2) that 32 and 56 do not divide, K that 16 does not: tails of all kinds. The last
# programs of even shares have a whole tile and no more, or not even that.
SIZES = [(65, 144, 64), (100, 240, 136), (128, 112, 72), (129, 64, 64), (200, 176, 88), (256, 16, 136)]
FP16, BF16 = torch.float16, torch.bfloat16


@CPU
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.kernel}{plan.turns}")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gated_products_of_many_tokens(size: tuple[int, int, int], plan: Plan, bias: bool) -> None:
    check_gated(plan, size, bias)


@CPU
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
@pytest.mark.parametrize("plan", [WAVES, EVEN], ids=lambda plan: plan.kernel)
def test_16_bit_products_of_many_tokens(plan: Plan, dtype: torch.dtype) -> None:
    check_gated(plan, (130, 176, 88), True, dtype=dtype)


@CPU
@pytest.mark.parametrize("plan", [WAVES, EVEN], ids=lambda plan: plan.kernel)
def test_every_line_is_computed_once(plan: Plan) -> None:
    """What a program stores is its own: the sizes are those of an 8B, the tiles too, K apart."""
    plan = replace(plan, block_n=256, block_k=64, warps=8)
    check_gated(plan, (129, 1024 + 16, 64), False)
    assert plan.programs(129, 1024 + 16) == {"waves": 10, "even": 6}[plan.kernel]


@CPU
@pytest.mark.parametrize("plan", [WAVES, EVEN], ids=lambda plan: plan.kernel)
def test_values_are_rounded_where_separate_kernels_store_them(plan: Plan) -> None:
    """Of single products nothing is lost in sums: gate, silu(gate) and up are rounded, then multiplied."""
    values = random(65, 16, dtype=FP16)
    weight = torch.zeros(32, 16, dtype=FP16)
    weight[:16] = torch.eye(16) * 1.001
    weight[16:] = torch.eye(16) * 3.003
    y, _ = product(plan, values, weight)
    gate, up = (values.double() @ weight.double().T).to(FP16).chunk(2, -1)
    silu = (gate.float() / (1 + torch.exp(-gate.float()))).to(FP16)
    apart = (silu.float() * up.float()).to(FP16)
    rounded = (y.view(torch.int16) != apart.view(torch.int16)).sum().item()
    assert rounded <= 2  # exp of another library, at most a bit apart
    torch.testing.assert_close(y, apart, rtol=2e-3, atol=1e-6)


def ops_with(plan: Plan, tokens: int, n: int, k: int, dtype: str = "float16") -> TritonOps:
    bucket = bucket_of(tokens)
    assert bucket is not None
    return TritonOps(Choices({Place(NORM_GATED, dtype, bucket, n, k): plan}))


@CPU
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("plan", [WAVES, EVEN], ids=lambda plan: plan.kernel)
def test_a_stage_of_many_tokens_equals_the_separate_operations(plan: Plan, bias: bool) -> None:
    given = operands(150, 176, 88, dtype=FP16)
    x, linear = given.x.contiguous(), DenseLinear(given.w, given.bias if bias else None)
    ours, plain = ops_with(plan, 150, 176, 88), TorchOps()
    y, stream = ours.norm_gated(x.clone(), given.residual.clone(), given.norm, EPS, linear)
    target, total = plain.norm_gated(x.clone(), given.residual.clone(), given.norm, EPS, linear)
    torch.testing.assert_close(y, target, rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(stream, total, rtol=0, atol=0)


@CPU
def test_a_stage_uses_the_plan_for_its_number_of_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    plain = product

    def counted(plan: Plan, x: torch.Tensor, *rest: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        used.append(x.shape[0])
        return plain(plan, x, *rest, **named)

    monkeypatch.setattr("backends.triton_products.product", counted)
    ours, given = ops_with(EVEN, 128, 64, 64), operands(257, 64, 64, dtype=FP16)
    for tokens in (64, 96, 97, 128, 129, 257):
        x, residual = given.x[:tokens].contiguous(), given.residual[:tokens].clone()
        y, _ = ours.norm_gated(x, residual, given.norm, EPS, DenseLinear(given.w))
        assert y.shape == (tokens, 32)
    assert used == [97, 128]


@CPU
@pytest.mark.parametrize("plan", [WAVES, EVEN], ids=lambda plan: plan.kernel)
def test_a_recording_reads_what_lies_there_now(plan: Plan) -> None:
    """Descriptors hold addresses, as those in a CUDA graph do."""
    given = operands(100, 64, 64)
    recording, (y, _) = record(lambda: product(plan, given.x, given.w))
    assert recording.names == [f"_linear_{plan.kernel}"]
    given.x.copy_(random(100, 64, seed=7))
    y.zero_()
    recording.replay()
    near(y, expected(given, 0, False, True))


class Noted:
    """A kernel that is neither compiled nor run."""

    def __init__(self) -> None:
        self.compiled: list[tuple[Any, ...]] = []

    def warmup(self, *operands: Any, **constants: Any) -> None:
        self.compiled.append((operands, constants))


@pytest.mark.parametrize("plan", [WAVES, replace(EVEN, stages=4)], ids=lambda plan: plan.kernel)
def test_on_the_meta_device_a_plan_is_compiled_alone(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """For descriptors as a launch has them: what a kernel depends on is their type and blocks."""
    kernel = Noted()
    monkeypatch.setattr(f"kernels.linear._linear_{plan.kernel}", kernel)
    x, weight = torch.empty(200, 64, dtype=BF16, device="meta"), torch.zeros(128, 64, dtype=BF16)
    y, _ = product(plan, x, weight)
    assert (y.is_meta, y.shape) == (True, (200, 64))
    ((given, constants),) = kernel.compiled
    described = [operand for operand in given if isinstance(operand, TensorDescriptor)]
    blocks = [tuple(each.block_shape) for each in described]
    widths = (32,) if plan.kernel == "waves" else (32, 16, 8)
    assert blocks == [(128, 16), *((2, width, 16) for width in widths), *((128, width) for width in widths)]
    assert [each.base.is_meta for each in described] == [True, *[False] * len(widths), *[True] * len(widths)]
    assert given[len(described) :] == (BF16, 2)  # in the bias's place the weight, and blocks of tokens
    assert constants["grid"] == (plan.programs(200, 128),)
    assert (constants["N"], constants["K"], constants["BIAS"]) == (128, 64, False)
    assert (constants["num_stages"], constants["num_warps"]) == (plan.stages, 4)
    assert not {"PDL", "launch_pdl"} & set(constants)  # launched plainly


def test_a_descriptor_of_the_meta_device_stands_for_a_real_one() -> None:
    """Triton compiles for the same signature, whichever of the two it is asked with."""
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import BaseBackend

    def kind(x: torch.Tensor) -> Any:
        described = TensorDescriptor(x, [4, 64], [64, 1], [128, 64])
        return native_specialize_impl(BaseBackend, described, False, True, True)

    real, meta = (torch.empty(4, 64, dtype=BF16, device=device) for device in ("cpu", "meta"))
    assert kind(real) == kind(meta) == ("tensordesc<bf16[128, 64]>", None)


def test_a_launch_knows_descriptors_of_the_meta_device() -> None:
    kernel, meta = Noted(), torch.empty(4, 64, dtype=BF16, device="meta")
    described = TensorDescriptor(meta, [4, 64], [64, 1], [128, 64])
    start(kernel, (3,), described, 5, N=7)
    assert kernel.compiled == [((described, 5), {"N": 7, "grid": (3,)})]


def test_what_is_compiled_on_the_meta_device_serves_every_number_of_tokens(tmp_path: Path) -> None:
    """A kernel for each plan, with and without a bias; none more for tensors that there are."""
    lines = compiled(Path(__file__).parent / "warm_wide.py", tmp_path)
    assert lines == ["meta 4", "real 0", "other 4"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_wide_products_compile_for_hopper(dtype: str, tmp_path: Path) -> None:
    """At an 8B's sizes: nothing is spilled, and the memory is what the plan says (see the script)."""
    lines = compiled(Path(__file__).parent / "compile_wide.py", tmp_path, dtype)
    assert len(lines) == 6
    assert all(int(re.findall(r"registers (\d+)", line)[0]) < 255 for line in lines)
