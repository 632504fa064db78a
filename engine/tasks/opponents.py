"""What the answers of an evaluation are compared with: nothing, an earlier run, or another configuration.

Importable without torch. Knows where answers come from, not how two sets of them are compared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.evals.base import Evaluation
from engine.evals.earlier import EarlierRun, is_overrides, overrides_of
from engine.overrides import Override, parse
from engine.snapshot import changed_keys, overlay
from engine.tasks.base import TaskContext

Row = Mapping[str, Any]
Examine = Callable[[Mapping[str, Any]], Sequence[Row]]
BESIDE = ("task", "prompt", "workload", "arrivals", "record", "seed", "threads", "step_costs")
ABOUT_THE_RUN = ("eval.against", "eval.resume", "eval.path", "eval.limit", "eval.seed", "eval.confidence")


class Opponent(ABC):
    """name: how the report calls it. differs: settings in which it is not the run's own configuration."""

    name = ""
    differs: Sequence[str] = ()

    @abstractmethod
    def rows(self, examine: Examine) -> Sequence[Row] | None:
        """Its marked answers; None where there is nothing to compare with. `examine` asks a configuration."""


class Nobody(Opponent):
    """Nothing is compared."""

    def rows(self, examine: Examine) -> None:
        return None


class Stored(Opponent):
    """The answers of an earlier run."""

    def __init__(self, run: EarlierRun, config: Mapping[str, Any]) -> None:
        self.name = str(run.path)
        self.differs = settings_that_differ(run.config, config)
        self._rows = list(run.rows.values())

    def rows(self, examine: Examine) -> Sequence[Row]:
        return self._rows


class Rival(Opponent):
    """Another configuration, asked the same questions in the same run."""

    def __init__(self, text: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        self.name = text
        self.differs = settings_that_differ(theirs, ours)
        self._config = theirs
        if not self.differs:
            raise UserError(
                f"eval.against={text} changes nothing, so both sides would be the same: name a setting that "
                "differs from this command line's"
            )

    def rows(self, examine: Examine) -> Sequence[Row]:
        return examine(self._config)


def opponent_of(context: TaskContext, evaluation: Evaluation) -> Opponent:
    """What eval.against names. Raises UserError, before a model is read, for overrides that cannot work."""
    text = evaluation.config.against
    if not text:
        return Nobody()
    if is_overrides(text):
        return Rival(text, changed_config(context, overrides_of(text)), context.config)
    return Stored(EarlierRun.read(text, "eval.against"), context.config)


def changed_config(context: TaskContext, extra: Sequence[str]) -> dict[str, Any]:
    """The run's configuration with other overrides on top, checked like a command line.

    Options of a part go with it: beside spec=none, the run's spec.adaptive=false would have no owner.
    """
    tree = conf_tree()
    new = [one for line in extra if (one := parse(line, tree)) is not None]
    given = {one.key for one in new}
    exchanged = {one.key for one in new if one.key in tree.groups and not one.package}
    kept = [line for line in context.overrides if not _gives_way(parse(line, tree), given, exchanged)]
    return overlay(context.config, context.compose(context.overrides), context.compose([*kept, *extra]))


def _gives_way(old: Override | None, given: Collection[str], exchanged: Collection[str]) -> bool:
    """Whether an override of the run is replaced, or belongs to a part that is."""
    if old is None:
        return False
    place = old.package.removeprefix("@").partition(".")[0] if old.package else old.root
    return old.key in given or place in exchanged


def settings_that_differ(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Dotted names of what could make answers differ."""
    return [
        key for key in changed_keys(a, b) if key.partition(".")[0] not in BESIDE and key not in ABOUT_THE_RUN
    ]
