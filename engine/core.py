"""Requests in, news out: the part of the Python API that serves requests one at a time.

Knows requests and events, nothing of steps; batches, streams and chats are made of it in engine/llm.py.
"""

from __future__ import annotations

import operator
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dependency_injector.providers import Object

from engine.answers import Delta, RequestOutput
from engine.build import make_config, target_class
from engine.container import EngineContainer
from engine.errors import UserError
from engine.interrupts import HeldInterrupt
from engine.kernel_choices.table import as_document as choices_document
from engine.loading import LineProgress
from engine.memory import MemoryPlan
from engine.models.shape import ModelShape
from engine.params import SamplingParams, mix64
from engine.pool_size import Owned
from engine.request import Request, collect, expand
from engine.step_costs import as_document
from engine.text.base import Tokenizer

Prompt = str | Sequence[int]
Params = SamplingParams | None


class EngineCore:
    """One engine and the requests that live in it."""

    def _build(
        self,
        config: Mapping[str, Any],
        progress: Callable[[str], None] | None,
        parts: Mapping[str, object],
    ) -> None:
        self._container = container = _wired(config, progress, parts)
        self.seed: int = config["seed"] if config["seed"] is not None else secrets.randbits(31)
        loaded = container.loaded()
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.shape: ModelShape = loaded.model.shape
        self.model_files: Mapping[str, str] = loaded.files
        self.device = str(container.device())
        self.dtype: str = container.dtype()
        sizes = container.sizes()
        self.max_context: int = sizes.context  # longest prompt and answer together
        self.spec = container.plan()
        container.warmed()
        self.captured_sizes: tuple[int, ...] = container.captured()  # batch sizes of decode graphs
        self.memory_plan: MemoryPlan = container.budget().plan
        self.kv_tokens: int = sizes.pages * sizes.page_size
        self.owned = Owned(sizes.page_size, sizes.width, sizes.draft_slots)  # KV slots of a request
        self.step_costs = container.costs()  # None where nobody asked for them
        self.measured = _measured(container)
        self._loop = container.loop()
        self._scheduler = container.scheduler()
        self.metrics = container.metrics()
        self._defaults = SamplingParams.from_config(
            make_config(target_class(config["sampling"]["_target_"]), config["sampling"], "sampling")
        )
        self._live: dict[str, Live] = {}
        self._count = 0
        self._since: float | None = None  # end of the last turn that left unfinished requests

    def add(
        self, prompt: Prompt, params: Params = None, *, listener: bool = False, request_id: str | None = None
    ) -> str:
        """Queue a prompt (text, or token ids as they are); returns the request's id.

        listener: news comes with every step; otherwise once, at the end. Raises UserError, and keeps nothing,
        for a request that can never run.
        """
        params = self._defaults if params is None else params
        if not isinstance(params, SamplingParams):
            raise UserError(f"params has to be SamplingParams, not {params!r:.80}")
        params.check_vocab(self.shape.vocab_size)
        ids = self._ids(prompt)
        self._count += 1
        name = request_id or f"req-{self._count}"
        if name in self._live:
            raise UserError(f"a request with the id {name!r} is running already: choose another id")
        seed = params.seed if params.seed is not None else mix64(self.seed * 1_000_003 + self._count) >> 1
        text = prompt if isinstance(prompt, str) else None
        requests = expand(name, ids, params, seed=seed, listener=listener, prompt=text)
        self._live[name] = Live(requests)
        try:
            for request in requests:
                self._scheduler.add(request)
        except UserError:
            self._forget(name)
            self._scheduler.drop_events(name)  # another try may come under the same id
            raise
        return name

    def _ids(self, prompt: Prompt) -> list[int]:
        ids = self.tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else _token_ids(prompt)
        if not ids:
            raise UserError("The prompt is empty: the model needs at least one token to continue.")
        if min(ids) < 0 or max(ids) >= self.shape.vocab_size:
            bad = next(i for i in ids if not 0 <= i < self.shape.vocab_size)
            raise UserError(
                f"The prompt holds token id {bad}; this model's ids are 0..{self.shape.vocab_size - 1}."
            )
        return ids

    def cancel(self, request_id: str) -> bool:
        """End a request at whatever stage it is; False if it is not running."""
        return self._scheduler.cancel(request_id)

    def has_work(self) -> bool:
        """Whether another `step` would do anything; ended requests that nobody asked for are no work."""
        return any(live.open for live in self._live.values()) or self._loop.has_work()

    def step(self) -> list[Delta]:
        """One turn of the loop; the news of all requests. Ctrl-C waits for its end: half a turn cannot be
        resumed."""
        with HeldInterrupt():
            start = time.perf_counter()
            waited = self.metrics.host_wait_seconds + self.metrics.back_pressure_seconds
            deltas: list[Delta] = self._loop.turn()
            waited = self.metrics.host_wait_seconds + self.metrics.back_pressure_seconds - waited
            end = time.perf_counter()
            self.metrics.host_seconds += end - start - waited
            self.metrics.serving_seconds += end - (start if self._since is None else self._since)
            for delta in deltas:
                live = self._live.get(delta.request_id)
                if live is not None:
                    live.news.append(delta)
                    live.open -= delta.finish_reason is not None
            self._since = end if any(live.open for live in self._live.values()) else None
            if self._since is None:
                self.metrics.occupancy.rest()
            return deltas

    def output(self, request_id: str) -> RequestOutput | None:
        """The output of a request once all its samples ended (then it is forgotten), else None."""
        live = self._live[request_id]
        if live.open:
            return None
        del self._live[request_id]
        return replace(collect(live.requests), simulated=self.spec.simulated)

    def _forget(self, request_id: str) -> None:
        """Cancel a request and drop its news, if it is still known."""
        if self._live.pop(request_id, None) is not None:
            self._scheduler.cancel(request_id)


class Closed:
    """Stands where the parts of an engine were: whatever is asked of it is answered with a UserError."""

    def __getattr__(self, name: str) -> Any:
        raise UserError("this engine was closed: make a new LLM")


class Live:
    """A request that runs: its samples, its unread news, how many samples are open."""

    __slots__ = ("news", "open", "requests")

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.news: list[Delta] = []
        self.open = len(requests)


def _wired(
    config: Mapping[str, Any], progress: Callable[[str], None] | None, parts: Mapping[str, object]
) -> EngineContainer:
    """The container, of which nothing is built yet; parts: what stands in for its own, by name."""
    container = EngineContainer()
    container.config.from_dict(dict(config))
    if progress is not None:
        container.progress.override(Object(LineProgress(progress)))
    for name, replacement in parts.items():
        getattr(container, name).override(Object(replacement))
    return container


def _measured(container: EngineContainer) -> dict[str, Mapping[str, Any]]:
    """What was chosen by measurement: tables by the root setting that takes a file of them."""
    costs = container.costs()
    found: dict[str, Mapping[str, Any]] = {} if costs is None else {"step_costs": as_document(costs)}
    if container.attention().own_products:
        found["kernels"] = choices_document(container.kernels().table)
    return found


def _token_ids(prompt: Sequence[int]) -> list[int]:
    """Plain integers of a list or a one-dimensional array; nothing is rounded."""
    try:
        return [operator.index(i) for i in prompt]
    except TypeError as error:
        raise UserError(f"A prompt is a text or a list of token ids, not {prompt!r:.80}") from error
