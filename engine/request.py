"""A request's host record, from arrival to completion; what users get of it is in engine.answers.

Knows nothing of pages' owners, of policies or of devices; the scheduler moves the record along.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.answers import Completion, RequestOutput
from engine.batch import Finish, TokenLogprob
from engine.sampling.asked import SamplingRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine.params import SamplingParams
    from engine.scheduling.outputs import TextSource

FINISH_REASONS = {
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.STOP_STRING: "stop",
    Finish.CANCELLED: "cancelled",
    Finish.ERROR: "error",
}


class State(enum.Enum):
    """Where a request is. RETRACTED: lost its place, its last launched step is still to be applied."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    RETRACTED = "retracted"
    FINISHED = "finished"


class Request:
    """One sample of one prompt, from arrival to completion.

    kv_committed: tokens whose KV is known to be written (moves when a result is applied). bound: upper bound
    of the row's seq_len at the next launch = kv_committed + widths in flight. at_least: tokens it will know
    once the steps in flight are applied, if each emits but one. prefill_end: tokens the prefill covers.
    pages: the row's page table; the first `shared_pages` of them belong to the prefix cache (locked through
    `cache_node`), the others to the request. last_step: the latest launched step that contains it; its row
    and pages stay until that one is applied. worst: most tokens it can ever have to own pages for.
    """

    __slots__ = (
        "arrival",
        "arrived",
        "at_least",
        "bound",
        "cache_key",
        "cache_node",
        "cached_tokens",
        "class_bit",
        "drafting",
        "error",
        "finish",
        "id",
        "index",
        "kv_committed",
        "last_step",
        "listener",
        "logprobs",
        "max_len",
        "output_ids",
        "pages",
        "params",
        "plain",
        "prefill_end",
        "prompt",
        "prompt_ids",
        "row",
        "sampling",
        "seed",
        "shared_pages",
        "state",
        "stream",
        "text_parts",
        "token_times",
        "waiting_since",
        "worst",
    )

    def __init__(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        index: int = 0,
        seed: int = 0,
        listener: bool = False,
        prompt: str | None = None,
    ) -> None:
        self.id = request_id
        self.index = index
        self.prompt = prompt
        self.prompt_ids: NDArray[np.int32] = np.asarray(prompt_ids, dtype=np.int32)
        self.params = params
        self.seed = seed
        self.listener = listener
        self.sampling = SamplingRow()
        self.class_bit = 0
        self.state = State.WAITING
        self.finish = Finish.NONE
        self.error: str | None = None
        self.output_ids: list[int] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.stream: TextSource | None = None
        self.plain = True  # needs no work a step beyond appending its tokens
        self.text_parts: list[str] = []
        self.arrival = 0  # order of arrival, given by the scheduler
        self.waiting_since = 0  # id of the step before which it began to wait
        self.cached_tokens = -1  # unknown until first admitted
        self.drafting: object = None  # what the width policy keeps of it
        self.max_len = 0
        self.worst = 0
        self.last_step = 0
        self.arrived = time.perf_counter()
        self.token_times: list[float] = []
        self.leave_table()

    def leave_table(self) -> None:
        """Forget row, pages and lengths (before admission, and after a release)."""
        self.row = 0
        self.kv_committed = 0
        self.bound = 0
        self.at_least = self.known
        self.prefill_end = self.known
        self.pages: list[int] = []
        self.shared_pages = 0
        self.cache_node: object | None = None
        self.cache_key = b""

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_ids)

    @property
    def known(self) -> int:
        """Tokens the host knows: prompt and applied outputs."""
        return len(self.prompt_ids) + len(self.output_ids)

    def known_ids(self) -> NDArray[np.int32]:
        """int32 [known]: prompt, then outputs."""
        if not self.output_ids:
            return self.prompt_ids
        return np.concatenate([self.prompt_ids, np.array(self.output_ids, dtype=np.int32)])

    @property
    def finished(self) -> bool:
        return self.finish is not Finish.NONE

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", "cancelled", "error", or None while it lives."""
        return FINISH_REASONS.get(self.finish)

    @property
    def text(self) -> str:
        """What was detokenised so far; all of it once finished."""
        return "".join(self.text_parts)

    def completion(self) -> Completion:
        """The finished sample."""
        return Completion(
            self.index,
            self.text,
            tuple(self.output_ids),
            self.finish_reason or "",
            None if self.logprobs is None else tuple(self.logprobs),
            tuple(at - self.arrived for at in self.token_times),
            self.error,
        )

    def __repr__(self) -> str:
        return f"Request({self.id!r}/{self.index}, {self.state.value}, known {self.known}, row {self.row})"


def expand(
    request_id: str,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    listener: bool = False,
    prompt: str | None = None,
) -> list[Request]:
    """The `params.n` samples of one prompt; they share the id and, through the prefix cache, the prompt."""
    return [
        Request(request_id, prompt_ids, params, index=i, seed=seed, listener=listener, prompt=prompt)
        for i in range(params.n)
    ]


def collect(requests: Sequence[Request]) -> RequestOutput:
    """The output of one prompt from its finished samples, in order of their index."""
    ordered = sorted(requests, key=lambda request: request.index)
    first = ordered[0]
    return RequestOutput(
        first.id,
        first.prompt,
        tuple(first.prompt_ids.tolist()),
        tuple(request.completion() for request in ordered),
        max(first.cached_tokens, 0),
    )
