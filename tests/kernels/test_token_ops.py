"""Norms, rotation with KV store and SwiGLU against plain torch written beside them, in float64."""

from __future__ import annotations

import pytest
import torch

from backends.base import ModelOps
from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps
from engine.batch import ForwardBatch, LayerKV, Mode, SeqLens

CUDA = torch.cuda.is_available()
GPU = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")]
CPU = pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
SETTINGS = [
    pytest.param(TorchOps, "cpu", torch.float32, id="torch-fp32"),
    pytest.param(TorchOps, "cpu", torch.bfloat16, id="torch-bf16"),
    pytest.param(TritonOps, "cpu", torch.float32, id="interpreter-fp32", marks=CPU),
    *(
        pytest.param(ops, "cuda", dtype, id=f"{ops.__name__}-gpu-{dtype}", marks=GPU)
        for ops in (TorchOps, TritonOps)
        for dtype in TOLERANCE
    ),
]
settings = pytest.mark.parametrize(("make", "device", "dtype"), SETTINGS)


def random(*shape: int, device: str, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def near(out: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def norm64(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@settings
@pytest.mark.parametrize("shape", [(1, 576), (5, 64), (3, 100), (7, 3, 64), (2, 1, 80), (0, 64)])
def test_rms_norm(make: type[ModelOps], device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = random(*shape, device=device, dtype=dtype)
    weight = random(shape[-1], device=device, dtype=dtype, seed=1)
    near(make().rms_norm(x, weight, 1e-5), norm64(x, weight, 1e-5), dtype)


@settings
def test_rms_norm_of_heads_inside_a_fused_projection(
    make: type[ModelOps], device: str, dtype: torch.dtype
) -> None:
    fused = random(4, 5 * 32, device=device, dtype=dtype)
    x = fused[:, 32:128].view(4, 3, 32)
    weight = random(32, device=device, dtype=dtype, seed=1)
    near(make().rms_norm(x, weight, 1e-6), norm64(x, weight, 1e-6), dtype)


@settings
@pytest.mark.parametrize("shape", [(1, 576), (6, 64), (3, 100), (0, 64)])
def test_add_rms_norm(make: type[ModelOps], device: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, residual = (random(*shape, device=device, dtype=dtype, seed=s) for s in (0, 1))
    weight = random(shape[-1], device=device, dtype=dtype, seed=2)
    total, kept = x + residual, residual.clone()
    normed, out = make().add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(out, total)
    assert torch.equal(residual, kept)  # hidden states that a drafter captured must not change
    near(normed, norm64(total, weight, 1e-5), dtype)


@settings
@pytest.mark.parametrize("shape", [(1, 1536), (5, 64), (3, 90), (0, 64)])
def test_silu_mul(make: type[ModelOps], device: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    gate_up = 4 * random(shape[0], 2 * shape[1], device=device, dtype=dtype)
    gate, up = gate_up.double().chunk(2, -1)
    near(make().silu_mul(gate_up), torch.nn.functional.silu(gate) * up, dtype)


def batch_of(positions: torch.Tensor, slots: torch.Tensor) -> ForwardBatch:
    """A batch of which only positions and slots matter."""
    none = torch.zeros(0, dtype=torch.int64)
    return ForwardBatch(Mode.IDLE, none, none, positions, slots, SeqLens(none, ()), none, (), none)


def rotate64(x: torch.Tensor, positions: torch.Tensor, theta: float = 1e4) -> torch.Tensor:
    """Pairs (i, i + D/2) turned by position * theta^(-2i/D), as complex numbers."""
    half = x.shape[-1] // 2
    angle = positions.double()[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half).to(
        x.device
    )
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(
        torch.ones_like(angle), angle
    ).unsqueeze(1)
    return torch.cat((turned.real, turned.imag), -1)


def tables(dim: int, device: str, theta: float = 1e4) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(64)[:, None] * theta ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    angle = torch.cat((angle, angle), -1)
    return angle.cos().float().to(device), angle.sin().float().to(device)


@settings
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 32), (3, 1, 80), (2, 1, 96)])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("tokens", [1, 6])
def test_rope_store(
    make: type[ModelOps], device: str, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, fused: bool,
    tokens: int,
) -> None:  # fmt: skip
    sizes = [heads * dim, kv_heads * dim, kv_heads * dim]
    q, k, v = random(tokens, sum(sizes), device=device, dtype=dtype).split(sizes, -1)
    if not fused:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    q, k, v = (x.unflatten(-1, (-1, dim)) for x in (q, k, v))
    positions = torch.tensor([63, 0, 5, 6, 17, 2][:tokens], device=device)
    slots = torch.tensor([3, 19, 4, 5, 0, 11][:tokens], device=device)
    kv = LayerKV(0, *(torch.full((20, kv_heads, dim), 7.0, device=device, dtype=dtype) for _ in "kv"))
    q64, k64, v64 = rotate64(q, positions), rotate64(k, positions), v.clone()
    new_q, new_k = make().rope_store(q, k, v, *tables(dim, device), kv, batch_of(positions, slots))
    near(new_q, q64, dtype)
    near(new_k, k64, dtype)
    assert torch.equal(kv.k[slots], new_k)
    assert torch.equal(kv.v[slots], v64)
    rest = torch.ones(20, dtype=torch.bool)
    rest[slots.cpu()] = False
    assert (kv.k.cpu()[rest] == 7).all()
    assert (kv.v.cpu()[rest] == 7).all()


@settings
def test_rope_store_of_nothing(make: type[ModelOps], device: str, dtype: torch.dtype) -> None:
    q, k = (torch.empty(0, n, 32, device=device, dtype=dtype) for n in (4, 2))
    kv = LayerKV(0, *(torch.zeros(8, 2, 32, device=device, dtype=dtype) for _ in "kv"))
    none = torch.zeros(0, dtype=torch.int64, device=device)
    new_q, new_k = make().rope_store(q, k, k, *tables(32, device), kv, batch_of(none, none))
    assert new_q.shape == q.shape
    assert new_k.shape == k.shape
