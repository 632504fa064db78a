"""From config and workload to token ids and sampling parameters. Knows no engine loop and prints nothing.

Importable without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.build import make_config, target_class
from engine.errors import UserError
from engine.params import SamplingParams
from engine.tasks.drive import Job
from engine.text.escapes import unescape
from engine.workloads.arrivals import Arrivals, TimedWorkload
from engine.workloads.base import WorkItem, Workload
from engine.workloads.single import SinglePrompt

if TYPE_CHECKING:
    from engine.tasks.base import TaskContext, TextEngine
    from engine.text.base import Tokenizer

SEED_LIMIT = 1 << 63
Message = Mapping[str, str]


def load_workload(context: TaskContext) -> Workload:
    """`prompt=` takes the place of the usual workload (the rules refuse it beside a chosen one); else the
    items carry the arrivals' times. Reads files and standard input now, before a model is read."""
    prompt = context.config.get("prompt")
    if prompt is not None:
        return SinglePrompt(str(prompt), context.stdin)
    workload, arrivals = (_part(context.config, group) for group in ("workload", "arrivals"))
    assert isinstance(workload, Workload)
    assert isinstance(arrivals, Arrivals)
    workload.fetch()
    return TimedWorkload(workload, arrivals)


def _part(config: Mapping[str, Any], group: str) -> object:
    cls = target_class(config[group]["_target_"])
    return cls(make_config(cls, config[group], group))


def sampling_params(config: Mapping[str, Any]) -> SamplingParams:
    """The sampling group as request parameters; `\\n` and the like in stop strings are escapes there."""
    params = SamplingParams.from_config(make_config(SamplingParams, config["sampling"], "sampling"))
    return replace(params, stop=tuple(unescape(text) for text in params.stop))


def first_messages(item: WorkItem) -> tuple[Message, ...]:
    """The conversation that an item opens with."""
    if item.messages:
        return item.messages
    text = item.prompt if item.prompt is not None else item.turns[0]
    asked = {"role": "user", "content": text}
    return (asked,) if item.system is None else ({"role": "system", "content": item.system}, asked)


def encode_item(item: WorkItem, tokenizer: Tokenizer, raw: bool) -> list[int]:
    """Token ids of an item's first request, through the model's chat template if it has one, unless `raw`."""
    if item.ids:
        return list(item.ids)
    if raw or not tokenizer.chat_template:
        return tokenizer.encode_prompt(_plain_text(item, "task.raw=true" if raw else "this model"))
    return tokenizer.encode_chat(first_messages(item))


def _plain_text(item: WorkItem, who: str) -> str:
    if item.prompt is None or item.system is not None:
        reason = "sends texts as they are" if who.startswith("task") else "has no chat template"
        raise UserError(f"a conversation in the workload needs a chat template, but {who} {reason}")
    return item.prompt


def make_jobs(
    engine: TextEngine, items: Sequence[WorkItem], params: SamplingParams, raw: bool = False
) -> list[Job]:
    """One job an item, all checked before any of them runs."""
    jobs = [
        Job(i, tuple(encode_item(item, engine.tokenizer, raw)), own_params(item, params), item.at)
        for i, item in enumerate(items)
    ]
    for job in jobs:
        check_fits(job, engine, items[job.key].title())
    return jobs


def own_params(item: WorkItem, params: SamplingParams) -> SamplingParams:
    """The request's parameters: an item may bring its own max_tokens."""
    if item.max_tokens is None:
        return params
    return replace(params, max_tokens=item.max_tokens, min_tokens=min(params.min_tokens, item.max_tokens))


def seeded(jobs: Sequence[Job], seed: int) -> list[Job]:
    """An explicit seed for each request, so that two engines draw the same whatever else they have served."""
    return [
        job if job.params.seed is not None else replace(job, params=_with_seed(job.params, seed + job.key))
        for job in jobs
    ]


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    return replace(params, seed=seed % SEED_LIMIT)


def warn_of_turns(items: Sequence[WorkItem], task: str, context: TaskContext) -> None:
    """Say once that a task which compares or measures single requests asks the first turn only."""
    count = sum(1 for item in items if item.turns)
    if count:
        print(f"task={task} asks only the first turn of {count} conversation(s)", file=context.stderr)


def check_fits(job: Job, engine: TextEngine, title: str) -> None:
    """UserError for a prompt that leaves no room for a single token."""
    if fits(job, engine):
        return
    shown = title if len(title) <= 40 else title[:39] + "…"
    raise UserError(
        f"prompt {job.key + 1} ({shown!r}) has {len(job.ids)} tokens, but prompt and answer together "
        f"may have {engine.max_context}: shorten it"
    )


def fits(job: Job, engine: TextEngine) -> bool:
    """Whether at least one token can follow the prompt."""
    return 0 < len(job.ids) < engine.max_context
