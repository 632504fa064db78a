"""An EAGLE3 draft in plain torch straight from a checkpoint's tensors, one token at a time: the oracle.

Written from the layout's description alone; shares no code with the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


class ReferenceHead:
    """Keeps keys and values of what was fed, position by position."""

    def __init__(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        self.w = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        self.c = config
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def fuse(self, aux: Tensor) -> Tensor:
        """aux [A] -> [H]."""
        return self.w["fc.weight"] @ aux.double()

    def feed(self, embed: Tensor, hidden: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """One row: (logits [Vd], state before the last norm [H]). embed, hidden: [H]."""
        w, eps, layer = self.w, self.c["rms_norm_eps"], "midlayer."
        both = torch.cat(
            (
                norm(embed.double(), w[layer + "input_layernorm.weight"], eps),
                norm(hidden, w[layer + "hidden_norm.weight"], eps),
            )
        )
        dim = self.c["head_dim"]
        q, k, v = ((w[f"{layer}self_attn.{n}_proj.weight"] @ both).view(-1, dim) for n in "qkv")
        self.keys.append(self._turn(k, position))
        self.values.append(v)
        q = self._turn(q, position)
        group = q.shape[0] // k.shape[0]
        out = []
        for head in range(q.shape[0]):
            keys = torch.stack([key[head // group] for key in self.keys])
            values = torch.stack([value[head // group] for value in self.values])
            out.append((keys @ q[head] / dim**0.5).softmax(0) @ values)
        hidden = hidden + w[layer + "self_attn.o_proj.weight"] @ torch.cat(out)
        x = norm(hidden, w[layer + "post_attention_layernorm.weight"], eps)
        gate, up = (w[f"{layer}mlp.{n}_proj.weight"] @ x for n in ("gate", "up"))
        hidden = hidden + w[layer + "mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
        return w["lm_head.weight"] @ norm(hidden, w["norm.weight"], eps), hidden

    def forget(self, rows: int) -> None:
        """Drop all but the first `rows` positions, as rejected drafts are."""
        del self.keys[rows:], self.values[rows:]

    def _turn(self, x: Tensor, position: int) -> Tensor:
        """Rotary embedding: coordinate i is paired with i + D / 2."""
        half = self.c["head_dim"] // 2
        angle = position * self.c["rope_theta"] ** (-torch.arange(half).double() / half)
        first, second = x[:, :half], x[:, half:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=1)


def chain_accepts(
    head: ReferenceHead, embeds: Tensor, aux: Tensor, ids: list[int], prompt: int, drafts: int
) -> list[int]:
    """Drafts accepted at each step of serving a known greedy answer, by doing what serving does.

    embeds: [V, H]; aux: [n, A] of the true text `ids`. After a step the true states replace the guessed.
    """
    names = torch.arange(len(head.w["d2t"])) + head.w["d2t"]
    accepted, row, written = [], prompt - 1, 0
    while row + 2 < len(ids):
        for t in range(written, row + 1):  # draft-extend: the target's own states
            logits, hidden = head.feed(embeds[ids[t + 1]], head.fuse(aux[t]), t)
        written, count = row + 1, 0
        for step in range(drafts):
            said = int(names[logits.argmax()])
            if row + 2 + step >= len(ids) or said != ids[row + 2 + step]:
                break
            count += 1
            logits, hidden = head.feed(embeds[said], hidden, row + 1 + step)
        head.forget(written)
        accepted.append(count)
        row += count + 1
    return accepted
