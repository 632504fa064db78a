"""What a configuration needs memory for, put together from its parts' class facts. Free of torch.

`task=explain` and the engine itself ask here, so that a plan which was shown is the plan that is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backends.base import AttentionBackend, AttentionSizes
from engine.build import TARGET, make_config, parts_of, target_class
from engine.footprints import BYTES, Graphs, Passes
from engine.memory import PlanSizes
from engine.models.shape import ModelShape
from speculative.base import SpecPlan

Node = Mapping[str, Any]
USUAL_STATES = 3  # layers whose inputs a draft model reads, where it is not known yet
USUAL_PROCESSORS = 132  # of a GPU that is not there to be asked


@dataclass(frozen=True)
class Needs:
    """running, chunk: limits of the scheduler. states: layer inputs that a draft model reads; relay: bytes of
    a row that it hands on. decode_graphs: sizes captured; prefill_graphs: (passes captured, tokens of the
    largest). lanes: batches that a pass runs as. attention, spec: nodes of the config. device: "cpu" or
    "cuda"."""

    shape: ModelShape
    compute: str
    page_size: int
    context: int
    running: int
    chunk: int
    plan: SpecPlan
    attention: Node
    spec: Node
    states: int = 0
    relay: int = 0
    decode_graphs: int = 0
    prefill_graphs: tuple[int, int] = (0, 0)
    lanes: int = 1
    device: str = "cpu"
    processors: int = USUAL_PROCESSORS

    def sizes(self) -> PlanSizes:
        """What buffers are sized by; the pool's tokens are left open."""
        plan = self.plan
        found = PlanSizes(
            tokens=0,
            page_size=self.page_size,
            context=self.context,
            passes=Passes(self.running, plan.width, self.chunk, self.states, plan.draft or plan.draft_extend),
            relay_bytes=self.relay,
            draft_slots=plan.draft_slots,
            scratch=plan.scratch,
        )
        if self.device == "cpu":  # graphs keep what is alive anyway, and memory is not ours to divide
            return found
        captured, largest = self.prefill_graphs
        passes = plan.longest_run if plan.draft else 0
        graphs = Graphs(self.decode_graphs, captured, passes, largest, self.lanes)
        return replace(found, graphs=graphs, attention=self._attention(found))

    def _attention(self, sizes: PlanSizes) -> int:
        """Of all roles. A draft has no more heads than its target, as drafts go."""
        shape, plan = self.shape, self.plan
        target = AttentionSizes(
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            self.page_size,
            sizes.rows,
            plan.width,
            sizes.row_context,
            BYTES[self.compute],
            self.chunk,
            self.processors,
        )
        widest = replace(target, max_width=max(plan.width, plan.scratch, 1))
        roles = int(plan.draft) + int(plan.draft_extend)
        nodes = parts_of(self.spec).items() if roles else ()
        drafts = sum(_room(node, widest, f"spec.{key}") for key, node in nodes)
        return self.lanes * _room(self.attention, target, "attention") + roles * drafts


def _room(node: Node, sizes: AttentionSizes, where: str) -> int:
    """What the backend of a node works in, its children included."""
    cls: type[AttentionBackend] = target_class(node.get(TARGET))
    below = [_room(child, sizes, f"{where}.{key}") for key, child in parts_of(node).items()]
    return cls.workspace_bytes(make_config(cls, node, where), sizes, below)
