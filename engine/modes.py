"""Contracts and null objects of the execution modes: step graphs, prefill graphs, two-batch overlap.

Free of torch. A mode wraps parts of the engine by their own contracts; rules and explain read its class facts
and ask for no names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from engine.lazy import lazy_import
from engine.models.source import Progress, silent

if TYPE_CHECKING:
    from backends.base import AttentionBackend
    from engine import passes
    from engine.graphs.capture import Capturer
    from engine.metrics import EngineMetrics
    from engine.passes import Driver, Passes
    from engine.runner import ModelRunner
    from engine.step import Step
    from speculative.base import Speculator
else:
    passes = lazy_import("engine.passes")


@dataclass(frozen=True)
class ModeContext:
    """What modes are built with. max_running: requests of the largest step; context: positions a row holds;
    chunk_tokens: of the largest prefill pass; widths: of decode steps, the usual one first; device: "cpu" or
    "cuda"; progress: told how far captures have come; longest: tokens with KV of any row before a decode
    step; draft_on_device: there is draft attention, and all of it builds its metadata on the device."""

    capturer: Capturer
    metrics: EngineMetrics
    max_running: int
    context: int
    chunk_tokens: int
    widths: tuple[int, ...]
    device: str = "cpu"
    page_size: int = 1
    progress: Progress = silent
    longest: int = 1
    draft_on_device: bool = False


class ExecutionMode:
    """One way to run a step's passes. Its facts are class attributes."""

    captures_step: ClassVar[bool] = False  # the whole step is in a graph: metadata is built on the device
    captures_forward: ClassVar[bool] = False  # forwards are graphs, what they need is planned before them
    contents: ClassVar[tuple[str, ...]] = ()  # stages of a step that the graph holds, in order
    captures_prefill: ClassVar[bool] = False  # prefill runs as graph segments between attention calls
    captures_chunk: ClassVar[bool] = False  # a whole prefill pass is one graph, attention included
    splits_batch: ClassVar[bool] = False  # two half batches are interleaved
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")  # device types where the mode can run

    @dataclass(frozen=True)
    class Config:
        """No options."""

    def __init__(self, config: Any = None) -> None:
        self.config = config


class GraphMode(ExecutionMode):
    """What of a decode step is captured. Each hook takes a part and returns it, or one that wraps it."""

    def runner(self, inner: ModelRunner, context: ModeContext) -> ModelRunner:
        """Around the target's forwards."""
        return inner

    def speculator(self, inner: Speculator, context: ModeContext) -> Speculator:
        """Around what the drafter does."""
        return inner

    def step(self, inner: Step, context: ModeContext) -> Step:
        """Around the whole step. `inner` has the other two hooks in it."""
        return inner

    def sizes(self, max_running: int) -> tuple[int, ...]:
        """Batch sizes to be captured at start, each of the context's first width; none: nothing is."""
        return ()


class PrefillMode(ExecutionMode):
    """What of a prefill pass is captured."""

    @classmethod
    def planned_graphs(cls, config: Any, largest: int, running: int, device: str) -> tuple[int, int]:
        """(passes that are captured in the end, tokens of the largest), for the memory plan. largest: tokens
        of the largest pass; running: requests in it at most; device: "cpu" or "cuda"."""
        return 0, 0

    def passes(self, inner: Passes, context: ModeContext) -> Passes:
        """Around the pieces between attention calls."""
        return inner

    def runner(self, inner: ModelRunner, context: ModeContext) -> ModelRunner:
        """Around the target's whole pass."""
        return inner


class BatchMode(ExecutionMode):
    """How many batches a pass is made of."""

    def attention(self, make: Callable[[], AttentionBackend]) -> AttentionBackend:
        """The target's backend; `make` builds one, as often as it is called."""
        return make()

    def driver(self, begins: Passes, attention: AttentionBackend, context: ModeContext) -> Driver:
        """What runs a pass from begin to end over that backend."""
        return passes.OneBatch(begins, attention)

    def whole(self, width: int) -> int:
        """Requests of the largest decode pass of that width that is too small to be cut; 0: none is cut."""
        return 0


class NoTwoBatch(BatchMode):
    """One batch at a time."""


class NoPiecewise(PrefillMode):
    """Prefill runs eagerly."""


class NoGraph(GraphMode):
    """Decode steps run eagerly."""
