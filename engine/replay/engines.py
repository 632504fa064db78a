"""Makes the engines of a run: each writes its course down, and in a replay follows a recorded one.

Knows run folders and engines; nothing of tasks. The heavy half of an engine loads when one is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.replay.course import COURSE, read_course
from engine.replay.facts import engine_facts
from engine.replay.follow import Recorded
from engine.replay.recorder import Recorder
from engine.runs import RunFolder, write_json
from engine.tasks.base import MakeEngine, TextEngine, say

if TYPE_CHECKING:
    from engine.llm import LLM


def recorded_engines(run: RunFolder) -> MakeEngine:
    """Engines of a run: the first one's facts go into run.json, the course of each into a file of its own."""
    made = 0

    def make(config: Mapping[str, Any]) -> TextEngine:
        nonlocal made
        made += 1
        engine = _recording(config, run.path / course_file(made))
        return _known(engine, config, run, first=made == 1)

    return make


@dataclass
class Replayed:
    """Engines of a replay, in the order in which the run made its own. stopped: the run did not reach its
    end. others: why its courses are not followed, empty where they are. courses: what became of each."""

    saved: Path
    run: RunFolder
    stopped: bool = False
    others: str = ""
    courses: list[Held] = field(default_factory=list)

    def __call__(self, config: Mapping[str, Any]) -> TextEngine:
        from engine.replay.following import FollowingLLM

        number = len(self.courses) + 1
        held = self._held(number)
        self.courses.append(held)
        if held.guide is None:
            engine = _recording(config, self.run.path / course_file(number))
        else:
            tape = Recorder(self.run.path / course_file(number), held.guide)
            engine = FollowingLLM(config, tape, held.guide)
        return _known(engine, config, self.run, first=number == 1)

    def first(self) -> Held:
        """What the first engine is going to follow."""
        return self._held(1)

    def _held(self, number: int) -> Held:
        place = self.saved / course_file(number)
        return Held(place.name, None, self.others) if self.others else hold(place, stopped=self.stopped)


@dataclass(frozen=True)
class Held:
    """A recorded course and its guide; guide None: there is none to follow, for a reason."""

    file: str
    guide: Recorded | None
    reason: str = ""

    def row(self) -> dict[str, Any]:
        """Plain data for replay.json."""
        if self.guide is None:
            return {"file": self.file, "steps": None, "recorded": None, "parted": self.reason}
        g = self.guide
        return {"file": self.file, "steps": g.steps, "recorded": g.recorded_steps, "parted": g.parted}


def hold(place: Path, *, stopped: bool = False) -> Held:
    """The course in a file, to be followed."""
    if not place.is_file():
        return Held(place.name, None, "not recorded")
    try:
        return Held(place.name, Recorded(read_course(place), stopped=stopped))
    except (OSError, ValueError) as error:
        return Held(place.name, None, f"unknown, since {error}")


def course_file(number: int) -> str:
    """The name of the n-th engine's course."""
    stem, _, ending = COURSE.partition(".")
    return COURSE if number == 1 else f"{stem}-{number}.{ending}"


def _recording(config: Mapping[str, Any], place: Path) -> LLM:
    from engine.llm import LLM

    parts = {"tape": Recorder(place)} if config.get("record", True) else {}
    return LLM.from_config(dict(config), progress=say, parts=parts)


def _known(engine: LLM, config: Mapping[str, Any], run: RunFolder, *, first: bool) -> TextEngine:
    """Note what is known only now of the engine that the folder is about."""
    if first:
        for name, table in engine.measured.items():
            write_json(run.path / f"{name}.json", table)
        run.record(**engine_facts(engine, config))
    return engine
