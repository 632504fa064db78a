"""A scheduler, the fake device and a real loop, which check every promise after every turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fake_device import FakeDevice
from hash_model import expected, expected_text

from engine.answers import Delta
from engine.cache.base import PrefixCache
from engine.cache.none import NoPrefixCache
from engine.cache.radix import RadixCache
from engine.loop import Loop, OverlapLoop, SerialLoop
from engine.metrics import EngineMetrics
from engine.params import SamplingParams
from engine.policy import FirstComeFirstServed, LongestPrefixFirst, SchedulerConfig
from engine.request import Request
from engine.scheduler import Scheduler
from engine.text.bytes_tokenizer import ByteTokenizer
from engine.text.stream import TextStream
from speculative.width import FixedWidth


class Rig:
    """A scheduler, a fake device and one of the real loops; checks every promise after every turn."""

    def __init__(
        self,
        *,
        page_size: int = 4,
        pages: int = 64,
        max_context: int = 128,
        width: int = 1,
        draft_slots: int = 0,
        lag: int = 1,
        cache: str = "radix",
        policy: str = "fcfs",
        drafter: str = "random",
        successor_keys: bool = False,
        seed: int = 0,
        eos_ids: tuple[int, ...] = (),
        text_stream_factory: Callable[[Request], object] | None = None,
        **limits: int,
    ) -> None:
        need = max(width, draft_slots)
        self.max_context = max_context
        self.device = FakeDevice(page_size, width, need, drafter, seed)
        self.metrics = EngineMetrics()
        kind = RadixCache if cache == "radix" else NoPrefixCache
        store: PrefixCache = kind(PrefixCache.Config(page_size=page_size), successor_keys=successor_keys)
        chosen = (
            FirstComeFirstServed(SchedulerConfig(**limits))
            if policy == "fcfs"
            else LongestPrefixFirst(LongestPrefixFirst.Config(**limits))
        )
        tokenizer = ByteTokenizer()
        self.scheduler = Scheduler(
            chosen,
            store,
            pages=pages,
            max_context=max_context,
            widths=FixedWidth(width),
            draft_slots=draft_slots,
            eos_ids=eos_ids,
            text_stream_factory=text_stream_factory  # type: ignore[arg-type]
            or (lambda r: TextStream(tokenizer, r.prompt_ids.tolist(), r.params.stop, r.params.include_stop)),
            metrics=self.metrics,
        )
        kind_of_loop: type[Loop] = OverlapLoop if lag else SerialLoop
        self.loop = kind_of_loop(Loop.Config(), self.scheduler, self.device)  # type: ignore[arg-type]
        self.requests: list[Request] = []
        self.events: list[Delta] = []
        self.turns = 0

    def add(self, request: Request) -> Request:
        self.scheduler.add(request)
        self.requests.append(request)
        return request

    def submit(self, prompt: Sequence[int], listener: bool = False, **params: object) -> Request:
        """Add a request with a fresh id."""
        name = f"r{len(self.requests)}"
        return self.add(Request(name, prompt, SamplingParams(**params), listener=listener))  # type: ignore[arg-type]

    def turn(self) -> None:
        self.turns += 1
        self.events += self.loop.turn()
        self.scheduler.check()
        holders = self.scheduler._roster.admitted + self.scheduler._roster.leaving
        owned = {page for request in holders for page in request.pages}
        for touched in self.device.touched:
            assert touched <= owned, "a step in flight touches a page that was given back"
        for request in holders:
            assert request.last_step == 0 or request.kv_committed <= request.bound <= request.worst + 1

    def drain(self, limit: int = 20000) -> None:
        while self.loop.has_work():
            self.turn()
            assert self.turns < limit, "no progress"
        self.events += self.scheduler.take_events()

    def verify(self) -> None:
        """Every request that was not cancelled has exactly the ids, text and reason it would have alone."""
        assert not self.scheduler.has_work()
        for request in self.requests:
            ids, reason = expected(request.prompt_ids.tolist(), request.params, self.max_context)
            if request.finish_reason == "cancelled":
                assert request.output_ids == ids[: len(request.output_ids)]
                continue
            assert (request.output_ids, request.finish_reason) == (ids, reason), request
            assert request.text == expected_text(ids, request.params)
            assert len(request.token_times) == len(ids)

    def assert_idle(self) -> None:
        """Nothing is held any more: every page is free or cached and unlocked."""
        ledger = self.scheduler.ledger
        assert ledger.free + ledger.cache.cached == ledger.total
        assert ledger.cache.evictable == ledger.cache.cached
        assert self.scheduler._roster.free_rows == self.scheduler.config.max_running
