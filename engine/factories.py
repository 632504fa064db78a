"""Small constructors that the container names: each turns config nodes and built parts into one part.

Everything takes plain values and returns a built object; what is shared, and for how long, the container
decides.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from backends.base import AttentionBackend, AttentionContext
from engine.batch import KVLayout
from engine.build import TARGET, make_config, parts_of, target_class
from engine.cache.base import PrefixCache
from engine.device_queue import DeviceQueue
from engine.errors import UserError
from engine.facts import DRAFT_NODE, DRAFT_SLOTS, backend_facts
from engine.futures import FutureMap
from engine.kernel_choices.plans import NO_CHOICES, Choices
from engine.kernel_choices.source import AUTO, LIBRARY, Found, find
from engine.kernel_choices.table import INTERPRETER, Circumstances
from engine.kernel_choices.usable import usable
from engine.kv_pool import KVPool
from engine.metrics import EngineMetrics
from engine.models.base import CausalLM, LoadedModel
from engine.models.source import ModelSource, Progress
from engine.modes import BatchMode
from engine.policy import Policy
from engine.request import Request
from engine.sampling.columns import SamplingColumns, pack_rows
from engine.scheduler import Scheduler
from engine.scheduling.acceptance_watch import AcceptanceWatch
from engine.scheduling.tape import Tape
from engine.table import RequestTable, TableSize
from engine.text.stream import TextStream
from engine.upload import Uploader
from kernels.cuda.available import why_not
from speculative.base import SpecPlan, Speculator
from speculative.width import WidthPolicy

logger = logging.getLogger("syncless")
Node = Mapping[str, Any]


class Heads(Protocol):
    """The attention shape of a target or a draft model."""

    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True)
class Sizes:
    """What buffers are sized by. pages: usable ones; context: longest request; width: drafts + 1 of the
    widest step; draft_slots: of the spec plan."""

    pages: int
    page_size: int
    context: int
    max_running: int
    width: int
    draft_slots: int = 0

    @property
    def table(self) -> TableSize:
        context = self.context + 3 * self.width + self.draft_slots
        return TableSize(self.max_running + 1, context, self.page_size)


def typed(node: Node, where: str) -> Any:
    """The Config of the part that a node describes."""
    return make_config(target_class(node.get(TARGET)), node, where)


def part(node: Node, where: str, extra: Sequence[object] = ()) -> Any:
    """The object that a config node describes: `_target_`'s class, built from its Config and `extra`
    parts.
    """
    return target_class(node.get(TARGET))(typed(node, where), *extra)


def device(name: str, threads: int | None) -> torch.device:
    """auto: CUDA when there is one. threads: CPU threads of the arithmetic, None leaves torch's choice."""
    if threads is not None:
        torch.set_num_threads(threads)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(name)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={name}: torch {torch.__version__} sees no CUDA device; use device=cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device={name}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    return chosen


def dtype(source: ModelSource, on: torch.device, attention_node: Node) -> str:
    """The weights' dtype: what was asked for, or the best that source, device and attention share."""
    supported = backend_facts(attention_node, "attention").dtypes.get(on.type, ())
    return source.resolve_dtype(on.type, supported)


def loaded_model(source: ModelSource, on: torch.device, weights: str, progress: Progress) -> LoadedModel:
    """Read the weights."""
    return source.load(str(on), weights, progress)


def kv_pool(model: CausalLM, size: Sizes, on: torch.device, overlap: Node) -> KVPool:
    """The pool for all layers of a model."""
    return KVPool(model.kv_layout, size.pages, size.page_size, on, poison=bool(overlap.get("debug")))


def attention(
    node: Node, model: CausalLM, size: Sizes, on: torch.device, role: str, batches: BatchMode, found: Found
) -> AttentionBackend:
    """The target's backend."""
    plans, layout = found.table.choices(), model.kv_layout
    lean = plans.lean(layout.dtype, model.shape.layer_products)
    return batches.attention(lambda: attention_for(node, model.shape, layout, size, on, role, plans, lean))


def kernel_choices(setting: str, on: torch.device, attention_node: Node) -> Found:
    """The table of kernels for products of few tokens that `kernels=setting` means on this device, as far as
    its kernels can be used here."""
    if setting not in (AUTO, LIBRARY) and not backend_facts(attention_node, "attention").own_products:
        logger.warning("kernels=%s is not used: only attention=triton has kernels to choose from", setting)
    gpu = torch.cuda.get_device_name(on) if on.type == "cuda" else INTERPRETER
    return usable(find(setting, Circumstances.here(gpu)), why_not)


def attention_for(
    node: Node,
    heads: Heads,
    layout: KVLayout,
    size: Sizes,
    on: torch.device,
    role: str,
    plans: Choices = NO_CHOICES,
    lean: frozenset[int] = frozenset(),
) -> AttentionBackend:
    """The backend of one role, with its children when it is a composite."""
    context = AttentionContext(
        role=role,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        scale=heads.head_dim**-0.5,
        page_size=size.page_size,
        max_rows=size.table.rows,
        max_width=size.width,
        max_context=size.table.context,
        device=on,
        dtype=getattr(torch, layout.dtype),
        choices=plans,
        lean=lean,
    )
    return _backend(node, context, "attention" if role == "target" else f"spec.{DRAFT_NODE}")


def _backend(node: Node, context: AttentionContext, where: str) -> AttentionBackend:
    children = {k: _backend(child, context, f"{where}.{k}") for k, child in parts_of(node).items()}
    built: AttentionBackend = part(node, where, [context, children] if children else [context])
    return built


def slots(
    target: AttentionBackend, drafts: Sequence[AttentionBackend | None]
) -> list[tuple[str, AttentionBackend | None]]:
    """(role, backend or None) of every attention slot."""
    return [("target", target), *zip(DRAFT_SLOTS, drafts, strict=True)]


def columns(model: CausalLM, size: Sizes, on: torch.device) -> SamplingColumns:
    """Sampling columns of the table; penalty counts included."""
    return SamplingColumns(size.table.rows, model.shape.vocab_size, on, penalties=True)


def table(
    size: Sizes, cols: SamplingColumns, speculator: Speculator, on: torch.device, overlap: Node
) -> RequestTable:
    """The request table."""
    return RequestTable(size.table, cols, speculator.relay_layout(), on, poison=bool(overlap.get("debug")))


def uploader(on: torch.device, rows: RequestTable) -> Uploader:
    """The packer of host decisions."""
    return Uploader(on, rows.size.context, rows.size.pages_per_row, pack_rows)


def futures(
    queue: DeviceQueue, metrics: EngineMetrics, needs_lens: tuple[bool, tuple[str, ...]], overlap: Node
) -> FutureMap:
    """The promises of launched steps."""
    return FutureMap(queue, metrics, needs_cpu_seq_lens=needs_lens[0], debug=bool(overlap.get("debug")))


def prefix_cache(node: Node, config: PrefixCache.Config, plan: SpecPlan) -> PrefixCache:
    """The cache; a draft whose KV depends on the next token asks for keys that know it."""
    built: PrefixCache = target_class(node[TARGET])(config, successor_keys=plan.successor_keys)
    return built


def scheduler(
    policy: Policy,
    cache: PrefixCache,
    size: Sizes,
    plan: SpecPlan,
    widths: WidthPolicy,
    loaded: LoadedModel,
    metrics: EngineMetrics,
    alarm: AcceptanceWatch,
    tape: Tape,
) -> Scheduler:
    """The scheduler over the pool's pages."""

    def text_stream(request: Request) -> TextStream:
        params = request.params
        return TextStream(loaded.tokenizer, request.prompt_ids.tolist(), params.stop, params.include_stop)

    return Scheduler(
        policy,
        cache,
        pages=size.pages,
        max_context=size.context,
        widths=widths,
        draft_slots=plan.draft_slots,
        eos_ids=loaded.eos_ids,
        text_stream_factory=text_stream,
        metrics=metrics,
        alarm=alarm,
        tape=tape,
    )
