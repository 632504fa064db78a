"""The prompts that a training run asks: of files, and made up by the model; one process's share of them.

Importable without torch. Knows the trainer's own sentences and who writes; not what is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.tasks.training_files import PromptFile, read_openings
from engine.tasks.training_text import Writer
from engine.tasks.training_time import REQUESTS
from engine.tasks.training_world import TrainingWorld
from engine.workloads.base import WorkItem

if TYPE_CHECKING:
    from engine.tasks.train_eagle3 import TrainEagle3


class TrainingPrompts:
    """sources: how many there were of each kind, in words."""

    def __init__(
        self,
        config: TrainEagle3.Config,
        trainer: Any,
        writer: Writer,
        world: TrainingWorld,
        say: Callable[[str], None],
    ) -> None:
        """trainer: brings what turns and documents begin with. say: gets a line after each kind."""
        self._config, self._trainer, self._writer = config, trainer, writer
        self._world, self._say = world, say
        self.sources: Counter[str] = Counter()

    def share(self, files: Sequence[PromptFile]) -> list[list[int]]:
        """Token ids of this process's prompts, the kinds mixed, so that a time limit cuts all alike."""
        writer, kinds = self._writer, [self._of_file(name, items) for name, items in files]
        turns = writer.turns(self._openings(), self._mine(self._config.self_prompts), "user turns")
        self._say(f"{len(turns)} user turns")
        requests = writer.turns(
            self._trainer.text_requests, self._mine(self._config.documents), "document requests", REQUESTS
        )
        about = writer.about(writer.documents(requests), self._trainer.about_text, self._config.questions)
        self._say(f"{len(about)} documents")
        self.sources["user turns that the target made up"] += len(turns) + len(requests)
        self.sources["questions about texts that the target wrote"] += len(about)
        return _mixed([*kinds, writer.texts(turns), writer.texts(requests), writer.texts(about)])

    def _of_file(self, name: str, items: Sequence[WorkItem]) -> list[list[int]]:
        mine = self._world.share(items[: self._config.prompt_limit])
        path = Path(name)
        self.sources[f"prompts of {'/'.join(path.parts[bool(path.anchor) :][-2:])}"] += len(mine)
        return self._writer.items(mine)

    def _openings(self) -> Sequence[str]:
        """Of the file, or the trainer's own."""
        if self._config.openings is None:
            return tuple(self._trainer.openings)
        return read_openings(self._config.openings)

    def _mine(self, count: int) -> int:
        return len(range(self._world.rank, count, self._world.size))


def _mixed(kinds: Sequence[list[list[int]]]) -> list[list[int]]:
    """All prompts, each kind spread evenly over the whole."""
    placed = [((i + 0.5) / len(kind), prompt) for kind in kinds for i, prompt in enumerate(kind)]
    return [prompt for _, prompt in sorted(placed, key=lambda pair: pair[0])]
