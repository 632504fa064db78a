"""Four-bit blocks made of a dense matrix have the error of a good quantiser, and the kernel keeps it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from engine.models.blocks import unpack_q4
from engine.models.linear import DenseLinear, Int4Linear
from engine.models.quantize import quantise_q4

SIZE = (256, 512)
SOURCES: dict[str, Callable[[], Tensor]] = {
    "gaussian": lambda: torch.randn(SIZE),
    "laplace": lambda: torch.distributions.Laplace(0.0, 1.0).sample(SIZE),
    "heavy-tailed": lambda: torch.distributions.StudentT(4.0).sample(SIZE),
    "off-centre": lambda: torch.rand(SIZE) + 5,
}


def drawn(name: str) -> Tensor:
    torch.manual_seed(0)
    return SOURCES[name]()


def relative_error(found: Tensor, matrix: Tensor) -> float:
    return float(((found - matrix).square().mean() / matrix.var()).sqrt())


@pytest.mark.parametrize("name", SOURCES)
def test_error_is_below_that_of_ggmls_q4_1(name: str) -> None:
    """Q4_1 has the same form: a scale and a minimum for 32 values, set by the extremes."""
    matrix = drawn(name)
    rivals = unpack_q4(quantize(matrix.numpy(), GGMLQuantizationType.Q4_1), 3).dense()
    assert relative_error(quantise_q4(matrix).dense(), matrix) < 0.96 * relative_error(rivals, matrix)


def test_error_on_gaussian_weights() -> None:
    """Uniform steps over a group's own range of about 4.1 deviations give 4.1 / 15 / sqrt(12) = 0.079."""
    assert 0.05 < relative_error(quantise_q4(drawn("gaussian")).dense(), drawn("gaussian")) < 0.076


def test_codes_are_four_bits_and_all_are_used() -> None:
    blocks = quantise_q4(drawn("gaussian"))
    assert blocks.codes.dtype == torch.uint8
    assert blocks.codes.unique().tolist() == list(range(16))
    assert blocks.scale.shape == blocks.minimum.shape == (SIZE[0], SIZE[1] // 32)
    assert torch.equal(blocks.scale, blocks.scale.bfloat16().float())


def test_sixteen_levels_come_back_as_they_were() -> None:
    levels = torch.randint(0, 16, SIZE).float()
    levels[:, ::32], levels[:, 1::32] = 0, 15  # every group spans its range
    matrix = levels * 0.25 - 2
    torch.testing.assert_close(quantise_q4(matrix).dense(), matrix, atol=1e-6, rtol=0)


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-30])
def test_a_group_of_equal_values(value: float) -> None:
    matrix = torch.full((16, 64), value)
    assert torch.equal(quantise_q4(matrix).dense(), matrix)


def test_rows_do_not_depend_on_their_neighbours() -> None:
    """Rows are worked on in parts; no part may leak into another."""
    matrix = torch.randn((2100, 32), generator=torch.Generator().manual_seed(1))
    whole = quantise_q4(matrix).dense()
    assert torch.equal(quantise_q4(matrix[1500:1600]).dense(), whole[1500:1600])


def test_bfloat16_weights_are_taken() -> None:
    matrix = drawn("gaussian").bfloat16()
    assert torch.equal(quantise_q4(matrix).dense(), quantise_q4(matrix.float()).dense())


def test_the_kernel_adds_little_error() -> None:
    matrix, x = drawn("gaussian"), torch.randn((4, SIZE[1]), generator=torch.Generator().manual_seed(2))
    exact = DenseLinear(matrix)(x)
    found = Int4Linear(quantise_q4(matrix))(x.bfloat16()).float()
    error = float((found - exact).square().mean().sqrt() / exact.std())
    assert error < 1.1 * relative_error(quantise_q4(matrix).dense(), matrix)


def test_rows_may_lie_apart_in_memory() -> None:
    """A drafter that catches up after a pause passes one column of its ring of states."""
    linear = Int4Linear(quantise_q4(drawn("gaussian")))
    states = torch.randn(3, 4, SIZE[1]).bfloat16()
    assert torch.equal(linear(states[:, 0]), linear(states[:, 0].clone()))
