"""`spec=eagle3`: options, plan and checks of the EAGLE3 drafter, and the order of its stages.

Importable without torch; the passes and the tensors are in the modules beside it.
Source: Li et al. 2025 (EAGLE-3), sec. 3; trees: Li et al. 2024 (EAGLE-2), sec. 4.
Legend: B requests, W width, n fused states, Ht hidden size of the target, H of the draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.batch import DraftTree
from engine.build import choice, number
from engine.lazy import lazy_import
from speculative.adaptive import AdaptiveWidth
from speculative.base import (
    DraftHost,
    DraftMemory,
    DraftTarget,
    NoSpeculation,
    RelayField,
    SpecPlan,
    Speculator,
)
from speculative.eagle3 import options, source
from speculative.eagle3.silence import CountsLongRows
from speculative.views import DraftView, Observed, PrefillSeen
from speculative.width import StepCosts, WidthPolicy

if TYPE_CHECKING:
    from torch import Tensor

    from engine.models.shape import ModelShape
    from speculative.eagle3 import assembly
    from speculative.eagle3.draft import Eagle3Draft
else:
    assembly = lazy_import("speculative.eagle3.assembly")

HIDDEN = "eagle3_hidden"


class Eagle3(Speculator):
    """Drafts by a one-layer model over the target's hidden states.

    Between steps it keeps one hidden state a request, that of the last entry in the draft's KV. `propose`
    drafts from there; `observe` writes the true entries over the guessed ones, from the target's own states.
    """

    reads_cpu_seq_lens = False  # positions, slots and lengths are computed on the device

    @dataclass(frozen=True)
    class Config:
        """See conf/spec/eagle3.yaml and docs/eagle3.md."""

        draft: str | None = None
        load: str = choice("auto", ("auto", "dummy"))
        seed: int = number(0, ge=0)
        num_steps: int = number(4, ge=1, le=31)
        topk: int = number(1, ge=1, le=16)
        num_draft_tokens: int | None = number(None, ge=2, le=32)
        acceptance: str = choice("match", ("match", "ratio"))
        adaptive: bool = True
        simulate_accept_length: float | None = number(None, ge=1)

    def __init__(self, config: Config, host: DraftHost) -> None:
        super().__init__(config, host)
        self._host = host
        self._draft: Eagle3Draft = assembly.draft_of(host)
        self._passes = assembly.passes(host)
        self._proposal = assembly.proposal(config, self.plan, host)
        self._pauses = assembly.pauses(config, host)
        self._silenced = assembly.silenced_by(host)
        self._depths = options.depths(config)
        self._longest = self._draft.max_positions
        self._outgrows = self._longest < host.context

    @classmethod
    def planned(cls, config: Config) -> SpecPlan:
        return options.plan(config)

    @classmethod
    def check(cls, config: Config) -> list[str]:
        """What is wrong with a Config, one sentence each."""
        return options.problems(config)

    @classmethod
    def target_problems(cls, config: Config, name: str, target: ModelShape) -> list[str]:
        return source.problems(config, name, target)

    @classmethod
    def memory(cls, config: Config, target: ModelShape, weights: str) -> DraftMemory | None:
        return source.memory(config, target, weights)

    @classmethod
    def files(cls, config: Config, target: ModelShape) -> tuple[Path, ...]:
        return source.files(config, target)

    @classmethod
    def load(cls, config: Config, target: DraftTarget) -> Eagle3Draft:
        """UserError when there is no draft for this target, or the checkpoint is not one."""
        return assembly.load(config, target)

    def relay_layout(self) -> tuple[RelayField, ...]:
        dtype = self._draft.kv_layout.dtype
        return RelayField(HIDDEN, (self._draft.hidden_size,), dtype), *self._pauses.fields()

    def width_policy(self, costs: StepCosts | None) -> WidthPolicy:
        inner = super().width_policy(costs)
        if costs is not None:
            inner = AdaptiveWidth(self._depths, costs, self.expected_acceptance())
        return CountsLongRows(inner, self._longest, self._host.count) if self._outgrows else inner

    def expected_acceptance(self) -> tuple[float, ...] | None:
        return self._draft.expected

    def propose(self, view: DraftView) -> DraftTree:
        if view.resume:
            self._keep(view, self._pauses.resume(view, self._kept(view)))
        if view.width == 1:
            return NoSpeculation.alone(view)
        tree = self._proposal(view, self._kept(view))
        longest = self._longest - self.plan.width if self._outgrows else None
        return self._silenced(tree, view, longest, self._pauses.behind(view))

    def observe(self, view: DraftView, seen: Observed) -> None:
        """Entries for every static row of the longest path; those past the accepted ones are overwritten
        later, and the last accepted one is kept."""
        states = self._states(seen)
        if view.width == 1 and self._pauses.put_off(view, states):
            return
        rows = min(self.plan.longest_run, view.width)
        if self.plan.tree:
            states = self._passes.path_rows(states, seen.accept_index, rows)
        left = self._passes.follow(view, seen.emitted[:, :rows], states)
        self._passes.keep_last(view.relay[HIDDEN], view.rows, left, seen.n_accepted, rows)

    def prefill(self, view: DraftView, seen: PrefillSeen) -> None:
        self._keep(view, self._passes.prefill(view, seen, self._states(seen)))
        self._pauses.caught_up(view)

    def _states(self, seen: Observed | PrefillSeen) -> Tensor:
        """[T, n * Ht]: the collected states, or the final one for a draft that reads no other."""
        return seen.hidden if seen.aux is None else seen.aux

    def _kept(self, view: DraftView) -> Tensor:
        return self._passes.rows(view.relay[HIDDEN], view.rows)

    def _keep(self, view: DraftView, hidden: Tensor) -> None:
        view.relay[HIDDEN].index_copy_(0, view.rows, hidden)
