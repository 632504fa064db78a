"""The EAGLE3 head as its paper and its public readers define it: fp32, dense, one request.

Written from the definitions, independent of the code under test; no pages, no batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class ReferenceHead:
    """config and tensors: of a checkpoint with `midlayer.*` names. embed: [V, H] where it brings none."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], embed: Tensor) -> None:
        self.config = config
        self.tensors = {
            name: value.float() if value.is_floating_point() else value for name, value in tensors.items()
        }
        self.embed = self.tensors.get("embed_tokens.weight", embed.float())
        self.heads = config["num_attention_heads"]
        self.dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.kv_heads = config.get("num_key_value_heads") or self.heads

    def fuse(self, states: Tensor) -> Tensor:
        """[L, n * Ht] -> [L, H]."""
        parts = [name for name in self.tensors if name.startswith("fc_norm.")]
        if parts:
            chunks = states.chunk(len(parts), dim=1)
            states = torch.cat([self.norm(x, f"fc_norm.{i}.weight") for i, x in enumerate(chunks)], dim=1)
        if "input_norm.weight" in self.tensors:
            states = self.norm(states, "input_norm.weight")
        if "fc.weight" not in self.tensors:
            return states
        return states @ self.tensors["fc.weight"].T + self.tensors.get("fc.bias", 0.0)

    def run(self, next_ids: Tensor, hidden: Tensor) -> Tensor:
        """Row t: the token after position t and the state of t -> what the next step takes, [L, H]."""
        embedded = self.norm(self.embed[next_ids], "midlayer.input_layernorm.weight")
        normed = self.norm(hidden, "midlayer.hidden_norm.weight")
        residual = normed if self.config.get("norm_before_residual") else hidden
        x = residual + self.attend(torch.cat((embedded, normed), dim=1))
        y = self.norm(x, "midlayer.post_attention_layernorm.weight")
        gate, up = (y @ self.tensors[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate * torch.sigmoid(gate) * up) @ self.tensors["midlayer.mlp.down_proj.weight"].T
        return self.norm(x, "norm.weight") if self.config.get("norm_output") else x

    def logits(self, state: Tensor) -> Tensor:
        """What `run` returned -> [L, Vd]."""
        if not self.config.get("norm_output"):
            state = self.norm(state, "norm.weight")
        head = self.embed if self.config.get("tie_word_embeddings") else self.tensors["lm_head.weight"]
        return state @ head.T

    def keys(self, next_ids: Tensor, hidden: Tensor) -> Tensor:
        """Rotated keys [L, Hkv, D]."""
        embedded = self.norm(self.embed[next_ids], "midlayer.input_layernorm.weight")
        normed = self.norm(hidden, "midlayer.hidden_norm.weight")
        return self.rotate(self.project("k", torch.cat((embedded, normed), dim=1), self.kv_heads))

    def attend(self, x: Tensor) -> Tensor:
        q, k = self.rotate(self.project("q", x, self.heads)), self.rotate(self.project("k", x, self.kv_heads))
        v = self.project("v", x, self.kv_heads)
        hidden = torch.ones(len(x), len(x)).triu(1).bool()
        outputs = []
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            scores = q[:, head] @ k[:, shared].T / self.dim**0.5
            outputs.append(scores.masked_fill(hidden, float("-inf")).softmax(1) @ v[:, shared])
        return self.linear("o", torch.cat(outputs, dim=1))

    def project(self, part: str, x: Tensor, heads: int) -> Tensor:
        return self.linear(part, x).view(len(x), heads, self.dim)

    def linear(self, part: str, x: Tensor) -> Tensor:
        name = f"midlayer.self_attn.{part}_proj."
        return x @ self.tensors[name + "weight"].T + self.tensors.get(name + "bias", 0.0)

    def rotate(self, x: Tensor) -> Tensor:
        """[L, heads, D] at positions 0..L-1, pairs (i, i + D / 2)."""
        half = self.dim // 2
        theta = self.config.get("rope_theta", 10000.0)
        angles = torch.arange(len(x)).double()[:, None] / theta ** (torch.arange(half).double() / half)
        cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
        low, high = x[..., :half], x[..., half:]
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]).sqrt()
        return x / scale * self.tensors[name]
