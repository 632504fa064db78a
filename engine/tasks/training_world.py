"""The processes that torchrun started, as a task sees them: which one this is, and what all of them made.

Importable without torch. Knows no training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from engine.errors import UserError
from engine.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import distributed
else:
    torch = lazy_import("torch")
    distributed = lazy_import("torch.distributed")

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingWorld:
    """rank of size processes; local: this one's number on its machine, which chooses its GPU."""

    rank: int = 0
    size: int = 1
    local: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> TrainingWorld:
        """What torchrun has put into the environment; one process where it has not."""
        try:
            rank, size, local = (
                int(environment.get(name, default))
                for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
            )
        except ValueError as error:
            raise UserError(f"RANK, WORLD_SIZE and LOCAL_RANK have to be integers: {error}") from error
        if not 0 <= rank < size:
            raise UserError(f"RANK={rank} does not lie below WORLD_SIZE={size}; start with torchrun")
        return cls(rank, size, local)

    def placed(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config with this process's own GPU where several share the work."""
        wanted = str(config["device"])
        if self.size == 1 or wanted not in ("auto", "cuda") or not torch.cuda.is_available():
            return config
        return {**config, "device": f"cuda:{self.local}"}

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's part of a list."""
        return list(items[self.rank :: self.size])

    def gather(self, mine: list[T]) -> list[T]:
        """The parts of all processes, in the order of their ranks."""
        if self.size == 1:
            return mine
        parts: list[Any] = [None] * self.size
        distributed.all_gather_object(parts, mine)
        return [item for part in parts for item in part]

    def __enter__(self) -> TrainingWorld:
        if self.size > 1:
            distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
            if torch.cuda.is_available():
                torch.cuda.set_device(self.local)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.size > 1:
            if kind is None:  # all leave together: none takes down what another still talks to
                distributed.barrier()
            distributed.destroy_process_group()
