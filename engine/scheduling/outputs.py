"""Turns the tokens a step emitted for a request into its output: text, stop strings, logprobs, the finish.

Everything a user sees derives from the one run trimmed here. Knows neither rows nor pages nor steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.answers import Delta
from engine.batch import Finish, TokenLogprob
from engine.request import Request


class Fed(Protocol):
    """text: what became certain. cut: how many of the fed ids to keep, where a stop string completed."""

    @property
    def text(self) -> str: ...

    @property
    def cut(self) -> int | None: ...


class TextSource(Protocol):
    """Incremental detokenisation of one request; see engine.text.stream.TextStream."""

    def feed(self, ids: Sequence[int], /) -> Fed: ...

    def finish(self) -> str: ...


TextFactory = Callable[[Request], TextSource]


class OutputProcessor:
    """Appends emitted runs to requests.

    Text is made as it comes only where somebody needs it (a listener, or stop strings), else once at the end.
    A failure in one request's text ends that request with "error", never the engine.
    """

    def __init__(self, text_factory: TextFactory) -> None:
        self._text_factory = text_factory

    def open(self, request: Request) -> None:
        """Prepare a request that has just arrived."""
        if request.params.logprobs is not None:
            request.logprobs = []
        if request.listener or request.params.stop:
            request.stream = self._text_factory(request)
        request.plain = request.stream is None and request.logprobs is None

    def take(
        self,
        request: Request,
        tokens: list[int],
        finish: int,
        logprobs: list[TokenLogprob] | None,
        now: float,
    ) -> Delta | None:
        """Append a run of a step, trimmed by stop strings, and finish the request where it ends.

        finish: what the device says of the run's last token; at one index a stop string wins over length.
        Returns the news if somebody listens, or if this is the end.
        """
        text, tokens, ended = self._read(request, tokens, Finish(finish))
        request.output_ids += tokens
        request.token_times += [now] * len(tokens)
        kept = self._keep_logprobs(request, logprobs, len(tokens))
        if ended is not Finish.NONE:
            return self.end(request, ended, text, tokens, kept)
        if text:
            request.text_parts.append(text)
        return Delta(request.id, request.index, text, tuple(tokens), None, kept) if request.listener else None

    def end(
        self,
        request: Request,
        finish: Finish,
        text: str = "",
        tokens: Sequence[int] = (),
        logprobs: tuple[TokenLogprob, ...] | None = None,
    ) -> Delta:
        """Finish a request; text, tokens and logprobs are those of its last step."""
        request.finish = finish
        rest = self._rest(request)
        request.text_parts.append(text + rest)
        request.stream = None
        reason = request.finish_reason
        if request.listener:
            return Delta(request.id, request.index, text + rest, tuple(tokens), reason, logprobs)
        whole = None if request.logprobs is None else tuple(request.logprobs)
        return Delta(request.id, request.index, request.text, tuple(request.output_ids), reason, whole)

    def _read(self, request: Request, tokens: list[int], finish: Finish) -> tuple[str, list[int], Finish]:
        """(new text, tokens kept, how it ended), with the stop id itself left out of the text."""
        stream = request.stream
        if stream is None:
            return "", tokens, finish
        try:
            fed = stream.feed(tokens[:-1] if finish is Finish.STOP else tokens)
        except Exception as error:
            return "", tokens, _fail(request, error)
        if fed.cut is None:
            return fed.text, tokens, finish
        return fed.text, tokens[: fed.cut], Finish.STOP_STRING

    def _rest(self, request: Request) -> str:
        """What text is still to come at the end: withheld by the stream, or all of it."""
        ids = request.output_ids
        try:
            if request.stream is not None:
                return request.stream.finish()
            stream = self._text_factory(request)
            text = stream.feed(ids[:-1] if request.finish is Finish.STOP else ids).text
            return text + stream.finish()
        except Exception as error:
            request.finish = _fail(request, error)
            return ""

    def _keep_logprobs(
        self, request: Request, logprobs: list[TokenLogprob] | None, count: int
    ) -> tuple[TokenLogprob, ...] | None:
        """The request's own share: the batch may have computed more, for others."""
        best = request.params.logprobs
        if request.logprobs is None or logprobs is None or best is None:
            return None
        kept = tuple(
            entry if len(entry.top) <= best else TokenLogprob(entry.token, entry.logprob, entry.top[:best])
            for entry in logprobs[:count]
        )
        request.logprobs += kept
        return kept


def _fail(request: Request, error: Exception) -> Finish:
    request.error = request.error or f"{type(error).__name__}: {error}"
    return Finish.ERROR
