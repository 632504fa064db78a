"""The EAGLE3 draft as a trainable module; its parameters bear the names of the public checkpoint layout.

Knows neither the target model nor where its hidden states come from.
Legend: B sequences, L positions, H hidden, A auxiliary width (3 H for three layers), Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.models.rope import rope_tables
from engine.models.shape import ModelShape
from speculative.eagle3.training.attention import unrolled_attention
from speculative.eagle3.training.vocabulary import Vocabulary


@dataclass(frozen=True)
class DraftShape:
    """model: the draft's one decoder layer (vocab_size is the target's). aux: width of the fused states."""

    model: ModelShape
    aux: int
    draft_vocab: int


@dataclass
class Memory:
    """Keys and values of the steps so far, heads repeated to the query's: [B, Hq, L, D] each."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class Norm(nn.Module):
    """RMS norm in fp32 (Zhang & Sennrich 2019, eq. 4)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self._eps)


class Attention(nn.Module):
    """Grouped-query attention over [embedding, hidden], 2 H wide."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        wide = 2 * shape.hidden_size
        self.q_proj = nn.Linear(wide, shape.q_size, bias=False)
        self.k_proj = nn.Linear(wide, shape.kv_size, bias=False)
        self.v_proj = nn.Linear(wide, shape.kv_size, bias=False)
        self.o_proj = nn.Linear(shape.q_size, shape.hidden_size, bias=False)
        self._dim = shape.head_dim
        self._group = shape.num_heads // shape.num_kv_heads
        cos, sin = rope_tables(shape, shape.max_positions, "cpu")
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor, step: int, memory: Memory) -> Tensor:
        """x [B, L, 2H] of unrolled step `step`, whose row t sits at position t + step."""
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, self._dim).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self._rotate(q, step), self._rotate(k, step)
        memory.keys.append(k.repeat_interleave(self._group, 1))
        memory.values.append(v.repeat_interleave(self._group, 1))
        out = unrolled_attention(q, memory.keys, memory.values, self._dim**-0.5)
        attended: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return attended

    def _rotate(self, x: Tensor, step: int) -> Tensor:
        """Half-split rotary embedding (Su et al. 2021, sec. 3.4)."""
        cos, sin = (table[step : step + x.shape[2]] for table in (self.cos, self.sin))
        first, second = x.float().chunk(2, dim=-1)
        return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class MidLayer(nn.Module):
    """The draft's decoder layer; the residual is the hidden half before its norm."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.hidden_norm = Norm(shape.hidden_size, shape.rms_eps)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_eps)
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape.hidden_size, shape.intermediate_size)

    def forward(self, embeds: Tensor, hidden: Tensor, step: int, memory: Memory) -> Tensor:
        both = torch.cat((self.input_layernorm(embeds), self.hidden_norm(hidden)), dim=-1)
        hidden = hidden + self.self_attn(both, step, memory)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class DraftNet(nn.Module):
    """Li et al. 2025 (EAGLE-3), section 3.1. The embedding is the target's and is not held here.

    aux_scale divides the auxiliary states channel by channel before `fc`, so that channels of very different
    size train alike; `export` folds it into fc.weight.
    """

    d2t: Tensor
    t2d: Tensor
    aux_scale: Tensor

    def __init__(self, shape: DraftShape, vocabulary: Vocabulary) -> None:
        super().__init__()
        hidden = shape.model.hidden_size
        self.shape = shape
        self.fc = nn.Linear(shape.aux, hidden, bias=False)
        self.midlayer = MidLayer(shape.model)
        self.norm = Norm(hidden, shape.model.rms_eps)
        self.lm_head = nn.Linear(hidden, shape.draft_vocab, bias=False)
        self.register_buffer("d2t", torch.from_numpy(vocabulary.d2t))
        self.register_buffer("t2d", torch.from_numpy(vocabulary.t2d))
        self.register_buffer("aux_scale", torch.ones(shape.aux))

    def fuse(self, aux: Tensor) -> Tensor:
        """Auxiliary states [B, L, A] -> hidden states of step 0 [B, L, H]."""
        fused: Tensor = self.fc(aux.float() / self.aux_scale)
        return fused.float()

    def step(self, embeds: Tensor, hidden: Tensor, step: int, memory: Memory) -> Tensor:
        """One unrolled step, [B, L, H] each: the draft's own hidden states before the last norm, which are
        both what the head reads (after `norm`) and the next step's input."""
        out: Tensor = self.midlayer(embeds.float(), hidden, step, memory)
        return out

    def target_ids(self) -> Tensor:
        """Target id of each draft id, int64 [Vd]."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t
