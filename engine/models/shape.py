"""The numbers of an architecture: all that memory plans, rules and `task=explain` need. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelShape:
    """Llama-family decoder. head_dim is given, never derived. rope_scaling: the checkpoint's own mapping."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, object] = field(default_factory=dict)
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    o_bias: bool = False
    sliding_window: int | None = None  # positions a query may look back; None: all

    @property
    def longest(self) -> int:
        """Most positions a row can have: those the model was trained for, within its sliding window."""
        return min(self.max_positions, self.sliding_window or self.max_positions)

    def context_problem(self, context: int) -> str:
        """Why rows of `context` positions cannot work, as a clause; empty when they can."""
        if context > self.max_positions:
            return (
                f"{self.architecture} was trained for {self.max_positions} positions, {context} are asked for"
            )
        if self.sliding_window is not None and context > self.sliding_window:
            return (
                f"{self.architecture} has a sliding window of {self.sliding_window}, which is not supported: "
                f"the context of {context} must not exceed it"
            )
        return ""

    @property
    def layer_products(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of a layer's matrices, merged as they are multiplied."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return (
            (self.q_size + 2 * self.kv_size, hidden),
            (hidden, self.q_size),
            (2 * inner, hidden),
            (hidden, inner),
        )

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
