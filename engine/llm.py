"""The Python API: an engine from overrides, batches and streams of text from an engine.

A thin face over the container; tasks use it too. Knows requests and events, nothing of steps.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from dependency_injector.providers import Object

from engine import rules
from engine.build import make_config, target_class
from engine.compose import compose
from engine.container import EngineContainer
from engine.errors import UserError
from engine.loading import LineProgress
from engine.models.shape import ModelShape
from engine.params import SamplingParams, mix64
from engine.request import Delta, Request, RequestOutput, collect, expand
from engine.scratch import full_prefill_logits
from engine.text.base import Tokenizer
from engine.text.chat import Message

Prompt = str | Sequence[int]
Params = SamplingParams | None


class LLM:
    """One model in one engine.

    >>> llm = LLM("model=tiny", "attention=torch")
    >>> for delta in llm.stream("Once upon a time"):
    ...     print(delta.text, end="")

    Overrides are those of the command line. A bad combination raises UserError before a weight is read. One
    thread at a time may use an engine; streams may be interleaved.
    """

    def __init__(self, *overrides: str) -> None:
        resolved = compose(overrides)
        rules.check(resolved)
        self._build(resolved.cfg, None, {})

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        progress: Callable[[str], None] | None = None,
        parts: Mapping[str, object] | None = None,
    ) -> LLM:
        """From a composed, plain, checked config; `progress` gets lines of text while weights are read.

        parts: objects that take the place of what the container would build, by the container's names
        ("speculator", "attention", ...): how a part of your own joins without a yaml.
        """
        self = cls.__new__(cls)
        self._build(config, progress, parts or {})
        return self

    def _build(
        self,
        config: Mapping[str, Any],
        progress: Callable[[str], None] | None,
        parts: Mapping[str, object],
    ) -> None:
        self._container = container = EngineContainer()
        container.config.from_dict(dict(config))
        if progress is not None:
            container.progress.override(Object(LineProgress(progress)))
        for name, replacement in parts.items():
            getattr(container, name).override(Object(replacement))
        self.seed: int = config["seed"] if config["seed"] is not None else secrets.randbits(31)
        loaded = container.loaded()
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.shape: ModelShape = loaded.model.shape
        self.model_files: Mapping[str, str] = loaded.files
        self.device = str(container.device())
        self.dtype: str = container.dtype()
        self.max_context: int = container.sizes().context  # longest prompt and answer together
        self._loop = container.loop()
        self._scheduler = container.scheduler()
        self.metrics = container.metrics()
        self._defaults = SamplingParams.from_config(
            make_config(target_class(config["sampling"]["_target_"]), config["sampling"], "sampling")
        )
        self._live: dict[str, _Live] = {}
        self._count = 0

    # --- one request at a time ------------------------------------------------------------------------------

    def add(
        self, prompt: Prompt, params: Params = None, *, listener: bool = False, request_id: str | None = None
    ) -> str:
        """Queue a prompt (text, or token ids as they are); returns the request's id.

        listener: news comes with every step; otherwise once, at the end. Raises UserError, and keeps nothing,
        for a request that can never run.
        """
        params = params or self._defaults
        params.check_vocab(self.shape.vocab_size)
        ids = self._ids(prompt)
        self._count += 1
        name = request_id or f"req-{self._count}"
        if name in self._live:
            raise UserError(f"a request with the id {name!r} is running already: choose another id")
        seed = params.seed if params.seed is not None else mix64(self.seed * 1_000_003 + self._count) >> 1
        text = prompt if isinstance(prompt, str) else None
        requests = expand(name, ids, params, seed=seed, listener=listener, prompt=text)
        live = _Live(requests)
        self._live[name] = live
        try:
            for request in requests:
                self._scheduler.add(request)
        except UserError:
            self._forget(name)
            raise
        return name

    def _ids(self, prompt: Prompt) -> list[int]:
        ids = self.tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else [int(i) for i in prompt]
        if not ids:
            raise UserError("The prompt is empty: the model needs at least one token to continue.")
        bad = next((i for i in ids if not 0 <= i < self.shape.vocab_size), None)
        if bad is not None:
            raise UserError(
                f"The prompt holds token id {bad}; this model's ids are 0..{self.shape.vocab_size - 1}."
            )
        return ids

    def cancel(self, request_id: str) -> bool:
        """End a request at whatever stage it is; False if it is not running."""
        return self._scheduler.cancel(request_id)

    def has_work(self) -> bool:
        """Whether another `step` would do anything."""
        return bool(self._live) or self._loop.has_work()

    def step(self) -> list[Delta]:
        """One turn of the loop; the news of all requests."""
        start = time.perf_counter()
        waited = self.metrics.host_wait_seconds + self.metrics.back_pressure_seconds
        deltas: list[Delta] = self._loop.turn()
        waited = self.metrics.host_wait_seconds + self.metrics.back_pressure_seconds - waited
        self.metrics.host_seconds += time.perf_counter() - start - waited
        for delta in deltas:
            live = self._live.get(delta.request_id)
            if live is not None:
                live.news.append(delta)
                live.open -= delta.finish_reason is not None
        return deltas

    def output(self, request_id: str) -> RequestOutput | None:
        """The output of a request once all its samples ended (then it is forgotten), else None."""
        live = self._live[request_id]
        if live.open:
            return None
        del self._live[request_id]
        return collect(live.requests)

    def _forget(self, request_id: str) -> None:
        """Cancel a request and drop its news."""
        self._scheduler.cancel(request_id)
        self._live.pop(request_id, None)

    # --- batches and streams --------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_finish: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """All prompts as one batch of requests, outputs in the order of the prompts.

        on_finish: called as each request ends. If anything interrupts, what still runs is cancelled.
        """
        each = _spread(params, len(prompts))
        ids: list[str] = []
        done: dict[str, RequestOutput] = {}
        try:
            for prompt, own in zip(prompts, each, strict=True):
                ids.append(self.add(prompt, own))
            while len(done) < len(ids):
                for delta in self.step():
                    output = self._finished(delta, ids)
                    if output is not None:
                        done[output.request_id] = output
                        if on_finish is not None:
                            on_finish(output)
        finally:
            for request_id in ids:
                if request_id not in done:
                    self._forget(request_id)
        return [done[request_id] for request_id in ids]

    def _finished(self, delta: Delta, mine: Sequence[str]) -> RequestOutput | None:
        ended = delta.finish_reason is not None and delta.request_id in self._live
        return self.output(delta.request_id) if ended and delta.request_id in mine else None

    def stream(self, prompt: Prompt, params: Params = None) -> Iterator[Delta]:
        """The news of one request as it comes; closing the iterator cancels it."""
        request_id = self.add(prompt, params, listener=True)
        return self._follow(request_id)

    def _follow(self, request_id: str) -> Iterator[Delta]:
        live = self._live[request_id]
        try:
            while live.open or live.news:
                if not live.news:
                    self.step()
                news, live.news = live.news, []
                yield from news
        finally:
            self._forget(request_id)

    def chat(self, messages: Sequence[Message], params: Params = None) -> RequestOutput:
        """The answer to a conversation, by the model's chat template."""
        return self.generate([self.tokenizer.encode_chat(messages)], params)[0]

    def chat_stream(self, messages: Sequence[Message], params: Params = None) -> Iterator[Delta]:
        """The same, as it comes."""
        return self.stream(self.tokenizer.encode_chat(messages), params)

    def next_token_logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """fp32 [V] on the host: logits of the token after `token_ids`, by one prefill that shares nothing."""
        container = self._container
        container.queue().synchronize()
        return full_prefill_logits(
            container.model(),
            container.attention(),
            container.sizes(),
            container.device(),
            self._ids(token_ids),
        )

    def forget_prefixes(self) -> int:
        """Empty the prefix cache, so that the next prompt is computed from its start; returns the pages freed.

        What running requests use stays.
        """
        while not self._live and self._loop.has_work():  # a late step of what ended may hold pages
            self.step()
        return self._scheduler.forget_prefixes()

    def check(self) -> None:
        """Hold the accounting of pages and rows: free + cached + reserved == total. Raises InternalError."""
        self._scheduler.check()

    # --- end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let what was launched end, then free the engine's memory. The engine cannot be used afterwards."""
        if self._container is not None:
            self._container.queue().synchronize()
            self._container.reset_singletons()
            del self._loop, self._scheduler

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Live:
    """A request that runs: its samples, its unread news, how many samples are open."""

    __slots__ = ("news", "open", "requests")

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.news: list[Delta] = []
        self.open = len(requests)


def _spread(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[Params]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise UserError(f"{count} prompts came with {len(params)} sampling parameters: give one, or one each")
    return list(params)
