"""The Python API: an engine from overrides, batches and streams of text from an engine.

A thin face over the container; tasks use it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from engine.answers import Delta, RequestOutput
from engine.core import Closed, EngineCore, Params, Prompt
from engine.errors import UserError
from engine.hints import hint_of_launches
from engine.interrupts import HeldInterrupt
from engine.models.base import CausalLM
from engine.params import SamplingParams
from engine.rules import compose_checked
from engine.scratch import full_prefill_logits
from engine.target_states import TargetStates
from engine.text.chat import Message


class LLM(EngineCore):
    """One model in one engine.

    >>> llm = LLM("model=tiny", "attention=torch")
    >>> for delta in llm.stream("Once upon a time"):
    ...     print(delta.text, end="")

    Overrides are those of the command line. A bad combination raises UserError before a weight is read. One
    thread at a time may use an engine; streams may be interleaved.
    """

    def __init__(self, *overrides: str) -> None:
        resolved = compose_checked(overrides)
        hint_of_launches(resolved)
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
        if isinstance(prompts, str | bytes):
            raise UserError("generate takes a list of prompts: for one text write generate([text])")
        each = _spread(params, len(prompts))
        ids: list[str] = []
        done: dict[str, RequestOutput] = {}
        with HeldInterrupt() as held:  # between an id's making and its keeping, too
            try:
                for prompt, own in zip(prompts, each, strict=True):
                    held.check()
                    ids.append(self.add(prompt, own))
                while len(done) < len(ids):
                    held.check()
                    self._collect(ids, done, on_finish)
            finally:
                for request_id in ids:
                    if request_id not in done:
                        self._forget(request_id)
        return [done[request_id] for request_id in ids]

    def _collect(
        self,
        ids: Sequence[str],
        done: dict[str, RequestOutput],
        on_finish: Callable[[RequestOutput], None] | None,
    ) -> None:
        """One step; the outputs that it completed."""
        for delta in self.step():
            output = self._finished(delta, ids)
            if output is not None:
                done[output.request_id] = output
                if on_finish is not None:
                    on_finish(output)

    def _finished(self, delta: Delta, mine: Sequence[str]) -> RequestOutput | None:
        ended = delta.finish_reason is not None and delta.request_id in self._live
        return self.output(delta.request_id) if ended and delta.request_id in mine else None

    def stream(self, prompt: Prompt, params: Params = None) -> Iterator[Delta]:
        """The news of one request as it comes; closing the iterator cancels it."""
        news = self._follow(self.add(prompt, params, listener=True))
        next(news)  # a generator that has not begun would not cancel when it is closed
        return news

    def _follow(self, request_id: str) -> Iterator[Delta]:
        live = self._live[request_id]
        try:
            yield Delta(request_id, 0, "", ())  # taken by stream()
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

    def target_states(self, layers: Sequence[int]) -> TargetStates:
        """The model as a trainer of drafts sees it: hidden states of whole sequences, at the inputs of
        `layers`, by this engine's own attention."""
        container = self._container
        container.queue().synchronize()
        name = str(container.config.model["_target_"]()).rpartition(".")[2]
        return TargetStates(container.model(), container.attention(), container.sizes(), layers, name)

    @property
    def model(self) -> CausalLM:
        """The target model itself, for references that share its weights."""
        model: CausalLM = self._container.model()
        return model

    def forget_prefixes(self) -> int:
        """Empty the prefix cache, so that the next prompt is computed from its start; returns the pages
        freed.

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
        if not isinstance(self._container, Closed):
            self._container.queue().synchronize()
            self._container.tape().close()
            self._container.reset_singletons()
            self._live.clear()
            closed: Any = Closed()
            self._container = self._loop = self._scheduler = closed

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _spread(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[Params]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise UserError(f"{count} prompts came with {len(params)} sampling parameters: give one, or one each")
    return list(params)
