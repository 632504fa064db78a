"""An engine without a model: the next token is a function of the tokens before it. For tests of tasks."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.answers import Completion, Delta, RequestOutput
from engine.batch import Mode
from engine.compose import compose
from engine.errors import UserError
from engine.memory import MemoryItem, MemoryPlan
from engine.metrics import EngineMetrics
from engine.models.shape import ModelShape
from engine.pool_size import Owned
from engine.runs import create_run
from engine.spec_metrics import Run
from engine.tasks.base import TaskContext
from engine.text.bytes_tokenizer import EOS, ByteTokenizer
from speculative.base import SpecPlan

VOCAB = 320
Script = Callable[[Sequence[int]], int]


def lowercase(ids: Sequence[int]) -> int:
    """A letter that depends on every token before it."""
    return 97 + zlib.crc32(bytes(str(list(ids)), "ascii")) % 26


def spell(text: str, after: str = "assistant: ") -> Script:
    """Always the answer `text`, then the end; the answer begins after the last `after` of the prompt."""
    answer = text.encode()

    def script(ids: Sequence[int]) -> int:
        known = bytes(i for i in ids if i < 256)
        done = len(known) - known.rindex(after.encode()) - len(after)
        return answer[done] if done < len(answer) else EOS

    return script


class FakeEngine:
    """One token a step and request; `width` tokens when it is more than one."""

    def __init__(
        self, script: Script = lowercase, *, max_context: int = 400, width: int = 1, seed: int = 5
    ) -> None:
        self.tokenizer: Any = ByteTokenizer(VOCAB)
        self.shape = ModelShape("fake", VOCAB, 8, 1, 1, 1, 8, 8, max_context)
        self.device, self.dtype, self.seed, self.max_context = "cpu", "float32", seed, max_context
        self.kv_tokens, self.owned = 1 << 16, Owned(16, width)
        self.memory_plan = MemoryPlan((MemoryItem("weights", 3 << 20, "none"),))
        self.model_files: Mapping[str, str] = {"weights": "abc"}
        self.metrics = EngineMetrics()
        self.step_costs = None
        self.spec = SpecPlan(width=width)
        self.script, self.width = script, width
        self.steps = 0
        self.closed = False
        self.on_step: Callable[[int], None] = lambda step: None
        self._requests: dict[str, Any] = {}
        self._count = 0
        self.forgotten = 0

    def add(self, prompt: Any, params: Any = None, *, listener: bool = False) -> str:
        self._count += 1
        name = f"r{self._count}"
        if len(prompt) >= self.max_context:
            raise UserError("too long")
        self._requests[name] = {
            "prompt": tuple(prompt),
            "params": params,
            "listener": listener,
            "out": [[] for _ in range(params.n)],
            "finish": [None] * params.n,
            "begin": self.steps,
            "times": [[] for _ in range(params.n)],
        }
        return name

    def step(self) -> list[Delta]:
        self.steps += 1
        self.on_step(self.steps)
        self.metrics.launched(Mode.VERIFY, len(self._requests), self.width)
        return [
            delta
            for name, request in list(self._requests.items())
            for index in range(len(request["out"]))
            if (delta := self._advance(name, request, index)) is not None
        ]

    def _advance(self, name: str, request: dict[str, Any], index: int) -> Delta | None:
        if request["finish"][index] is not None:
            return None
        params, out = request["params"], request["out"][index]
        new: list[int] = []
        while len(new) < self.width and request["finish"][index] is None:
            token = self.script([*request["prompt"], *([index] if index else []), *out])
            out.append(token)
            new.append(token)
            request["times"][index].append(float(self.steps - request["begin"]))
            if token == EOS and not params.ignore_eos:
                request["finish"][index] = "stop"
            elif len(out) >= min(params.max_tokens or 10**9, self.max_context - len(request["prompt"])):
                request["finish"][index] = "length"
        drafts = self.width - 1
        self.metrics.applied(Mode.VERIFY, 1, len(new), len(new) - 1, drafts)
        if drafts:
            self.metrics.runs[Run(self.width, drafts, drafts, len(new), params.temperature == 0)] += 1
        finish = request["finish"][index]
        if not request["listener"] and finish is None:
            return None
        shown = new if request["listener"] else out
        return Delta(name, index, self.tokenizer.decode(shown), tuple(shown), finish)

    def forget_prefixes(self) -> int:
        self.forgotten += 1
        return 0

    def cancel(self, request_id: str) -> bool:
        request = self._requests[request_id]
        request["finish"] = [finish or "cancelled" for finish in request["finish"]]
        original = self.step

        def once() -> list[Delta]:
            self.step = original  # type: ignore[method-assign]
            news = [Delta(request_id, i, "", (), "cancelled") for i in range(len(request["out"]))]
            return [*news, *original()]

        self.step = once  # type: ignore[method-assign]
        return True

    def output(self, request_id: str) -> RequestOutput | None:
        request = self._requests[request_id]
        if any(finish is None for finish in request["finish"]):
            return None
        del self._requests[request_id]
        completions = tuple(
            Completion(i, self.tokenizer.decode(out), tuple(out), finish, None, tuple(times))
            for i, (out, finish, times) in enumerate(
                zip(request["out"], request["finish"], request["times"], strict=True)
            )
        )
        return RequestOutput(request_id, None, request["prompt"], completions, 0)

    def next_token_logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        logits = torch.zeros(VOCAB)
        logits[self.script(token_ids)] = 10.0
        return logits

    def close(self) -> None:
        self.closed = True


def plain_config(*overrides: str) -> dict[str, Any]:
    return dict(compose(["model=tiny", *overrides]).cfg)


def context_of(
    tmp_path: Path, engine: Any, *overrides: str, stdin: str = "", config: Mapping[str, Any] | None = None
) -> TaskContext:
    """A context with a run folder, captured streams, and `engine` (or engines, in order) behind it."""
    config = plain_config(*overrides) if config is None else config
    engines: Iterable[Any] = iter(engine if isinstance(engine, list) else [engine])
    run = create_run(tmp_path / "run", config, overrides)
    return TaskContext(
        config,
        overrides,
        run,
        make_engine=lambda _: next(engines),  # type: ignore[call-overload]
        stdin=io.StringIO(stdin),
        stdout=io.StringIO(),
        stderr=io.StringIO(),
    )


def text_of(stream: Any) -> str:
    return str(stream.getvalue())
