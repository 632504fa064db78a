"""The recording itself: what it says is what was launched, it is the same for the same run, and small."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import engines

from benchmarks import recording
from engine.batch import Mode, ScheduledStep
from engine.params import SamplingParams
from engine.replay.course import (
    Arrival,
    Closed,
    Decode,
    End,
    Line,
    Prefill,
    check_of,
    entry_of,
    read_course,
    steps_of,
)
from engine.replay.recorder import Recorder
from engine.request import Request
from engine.scheduling.tape import Tape

NUMBERS = st.integers(0, 2**40)
ENTRIES = st.one_of(
    st.builds(Arrival, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(End, NUMBERS, st.sampled_from(["stop", "length", "cancelled", "error"]), NUMBERS, NUMBERS),
    st.builds(Prefill, st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple)),
    st.builds(Decode, NUMBERS, st.booleans(), NUMBERS),
    st.builds(Closed),
)
HEADER = '{"course": 1}'


@given(st.lists(ENTRIES, max_size=5))
def test_a_course_reads_back_as_written(tmp_path_factory: pytest.TempPathFactory, entries: list[Any]) -> None:
    lines = [Line(entry, 7 if isinstance(entry, Decode) else 1) for entry in entries]
    file = tmp_path_factory.getbasetemp() / "course.jsonl"
    file.write_text("\n".join([HEADER, *(line.text() for line in lines), '["d",1,0']))
    assert read_course(file) == lines, "half a line at the end is left out"
    assert [entry_of(entry.head()) for entry in entries] == entries


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("", "another version"),
        ('{"course": 2}\n', "another version"),
        (f'{HEADER}\n["x",1]\n', "damaged"),
        (f'{HEADER}\n["d",1,0,1]\n', "damaged"),
        (f'{HEADER}\n["-",1]\n', "damaged"),
        (f"{HEADER}\n7\n", "damaged"),
        (f"{HEADER}\n[]\n", "damaged"),
        (f"{HEADER}\nnonsense\n", "damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, clause: str) -> None:
    file = tmp_path / "schedule.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=clause):
        read_course(file)


def test_the_check_is_that_of_the_ids_of_a_request() -> None:
    ids = [0, 5, 70000, 2**31 - 1]
    assert check_of(ids) == zlib.crc32(b"".join(i.to_bytes(4, "little") for i in ids))


class Spy(Tape):
    """Notes every step plainly, beside the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.inner = recorder
        self.steps: list[tuple[Any, ...]] = []

    def arrived(self, request: Request, applied: int) -> None:
        self.inner.arrived(request, applied)

    def ended(self, request: Request, applied: int) -> None:
        self.inner.ended(request, applied)

    def launched(self, step: ScheduledStep, requests: Sequence[Request]) -> None:
        numbers = tuple(request.arrival for request in requests)
        if step.mode is Mode.EXTEND:
            self.steps.append(("p", tuple(zip(numbers, step.bounds, step.query_lens, strict=True))))
        else:
            self.steps.append(("d", step.width, len(numbers)))
        self.inner.launched(step, requests)

    def close(self) -> None:
        self.inner.close()


def expanded(lines: Sequence[Line]) -> list[tuple[Any, ...]]:
    """Every step of a course on its own."""
    steps: list[tuple[Any, ...]] = []
    for line in lines:
        entry = line.entry
        if isinstance(entry, Prefill):
            steps.append(("p", entry.chunks))
        elif isinstance(entry, Decode):
            steps += [("d", entry.width, entry.requests)] * line.times
    return steps


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("cache.tokens=640", "scheduler.headroom=0", "scheduler.max_running=12"),  # too small: retractions
        ("spec=ngram", "cache.tokens=1024", "overlap=none"),
        ("scheduler.chunk_tokens=16", "scheduler.prefill_streak=2"),
    ],
)
def test_a_recording_says_what_was_launched(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    file = tmp_path / "course.jsonl"
    spy = Spy(Recorder(file))
    prompts = [[65 + i] * (20 + 7 * i) for i in range(12)]
    with engines.make(*engines.FAKE, *overrides, "seed=3", parts={"tape": spy}) as llm:
        llm.generate(prompts, [SamplingParams(max_tokens=30 + i, ignore_eos=True) for i in range(12)])
        retractions = llm.metrics.retractions
    lines = read_course(file)
    assert expanded(lines) == spy.steps
    assert steps_of(lines) == len(spy.steps) > 30
    assert sum(isinstance(line.entry, End) for line in lines) == 12
    assert (retractions > 0) == ("scheduler.headroom=0" in overrides)
    assert isinstance(lines[-1].entry, Closed)


SAME = [
    ("sampling=creative", "seed=3"),
    ("task=bench", "task.concurrency=3", "task.repeats=2"),
    ("task=verify", "overlap=future", "seed=3"),
    ("workload=multi_turn", "workload.count=3", "scheduler=longest_prefix"),
    ("spec=ngram", "spec.adaptive=false"),
    ("sampling.n=3", "sampling=balanced", "seed=1", "scheduler.max_running=4"),
]


@pytest.mark.parametrize("overrides", SAME)
def test_without_a_clock_batches_follow_from_the_config(run: Any, overrides: tuple[str, ...]) -> None:
    """Nothing has to be followed there: two runs leave the same course, byte for byte."""
    first, second = run(*overrides), run(*overrides)
    courses = sorted(path.name for path in first.glob("schedule*.jsonl"))
    assert courses == (
        ["schedule-2.jsonl", "schedule.jsonl"] if "task=verify" in overrides else ["schedule.jsonl"]
    )
    for name in courses:
        assert (first / name).read_bytes() == (second / name).read_bytes()
        assert len(read_course(first / name)) > 10


def test_a_long_answer_costs_no_lines(run: Any) -> None:
    short, long = (
        run("prompt=hi", f"sampling.max_tokens={n}", "sampling.ignore_eos=true") for n in (10, 500)
    )
    sizes = [(folder / "schedule.jsonl").stat().st_size for folder in (short, long)]
    assert sizes[1] - sizes[0] < 20
    assert steps_of(read_course(long / "schedule.jsonl")) == 500


@pytest.mark.parametrize(("batch", "overrides"), [(1, ()), (8, ()), (8, ("spec=ngram",))])
def test_recording_takes_a_small_share_of_a_step(batch: int, overrides: tuple[str, ...]) -> None:
    """Under 1% where nothing else runs (docs/repeats.md); three times that is a mistake on any machine."""
    found = recording.share(batch, 60, *overrides, repeats=3)
    assert found.recorder < 0.03 * found.host
    assert found.size < 16


def test_the_recording_can_be_left_out(run: Any) -> None:
    folder = run("workload.limit=1", "record=false")
    assert not list(folder.glob("schedule*"))
    assert json.loads((folder / "run.json").read_text())["kv_tokens"] > 0, "what was found out is kept"
