"""The training loop: batches in, gradient steps out, progress and checkpoints on the way.

Knows the draft, the frozen target and the text; not where text comes from, nor the files of the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import UserError
from speculative.eagle3.training.batch import TextBatch, make_batch
from speculative.eagle3.training.data import Ids, TextStore, batches
from speculative.eagle3.training.loss import step_loss, teach
from speculative.eagle3.training.net import DraftNet
from speculative.eagle3.training.optimizer import make_optimizer
from speculative.eagle3.training.progress import Meter, Reading
from speculative.eagle3.training.resume import load_state, save_state
from speculative.eagle3.training.target import Target
from speculative.eagle3.training.unroll import look, unrolled
from speculative.eagle3.training.world import World


@dataclass(frozen=True)
class Recipe:
    """unroll: steps of training-time test. decay: weight of step k is decay ** k. prompts_too: see
    make_batch. tokens: positions a gradient step, over all processes. warmup: share of the run. minutes:
    wall-clock limit of the whole run, earlier parts of a resumed one included. log_seconds, save_seconds:
    between two progress lines, two checkpoints."""

    epochs: int
    minutes: float | None
    tokens: int
    unroll: int
    decay: float
    prompts_too: bool
    optimizer: str
    lr: float
    final_lr: float
    warmup: float
    weight_decay: float
    clip: float
    seed: int
    log_seconds: float
    save_seconds: float


@dataclass
class Place:
    """How far a run has come in its text (a checksum): gradient steps, the next batch of the epoch, seconds
    of training so far."""

    text: int
    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    curve: list[dict[str, object]] = field(default_factory=list)


class Training:
    """One run over one text; `run` may be called again after it stopped."""

    def __init__(
        self, net: DraftNet, target: Target, store: TextStore, recipe: Recipe, world: World, folder: Path
    ) -> None:
        self._net, self._target, self._store = net, target, store
        self._recipe, self._world, self._folder = recipe, world, folder
        self._optimizer = make_optimizer(recipe.optimizer, net, recipe.lr, recipe.weight_decay)
        self._total = max(1, recipe.epochs * len(self._plan(0)))
        self._meter = Meter(recipe.unroll, target.device)
        self.place = Place(store.checksum)

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint file. UserError for one of another run, or of one on other text."""
        place = load_state(path, self._net, self._optimizer, self._target.device)
        if place.get("text") != self._store.checksum:
            raise UserError(
                f"the run that left {path} was trained on other text, so its place in it means nothing here: "
                "give the same task.text and task.evaluate as that run, or leave task.resume out"
            )
        self.place = Place(**place)

    def run(self, stopped: Callable[[], bool], say: Callable[[str], None]) -> bool:
        """Train to the end of the last epoch, of the time, or until `stopped()`; whether it is complete."""
        place, began, last_save = self.place, time.perf_counter() - self.place.seconds, time.perf_counter()
        last_log = time.perf_counter()
        while place.epoch < self._recipe.epochs:
            plan = self._plan(place.epoch)
            while place.batch < len(plan):
                place.seconds = self._world.agreed(time.perf_counter() - began)
                if self._world.any(stopped()) or self._progress() >= 1.0:
                    return self._end(say)
                self._step(plan[place.batch])
                place.step, place.batch = place.step + 1, place.batch + 1
                if self._world.any(time.perf_counter() - last_log >= self._recipe.log_seconds):
                    self._log(say)
                    last_log = time.perf_counter()
                if time.perf_counter() - last_save >= self._recipe.save_seconds:
                    self.save()
                    last_save = time.perf_counter()
            place.epoch, place.batch = place.epoch + 1, 0
        place.seconds = self._world.agreed(time.perf_counter() - began)
        return self._end(say)

    def save(self) -> None:
        """Write a checkpoint; the first process does."""
        if self._world.first:
            save_state(self._folder, self._net, self._optimizer, vars(self.place))

    def _end(self, say: Callable[[str], None]) -> bool:
        self._log(say)
        if not all(torch.isfinite(weight).all() for weight in self._net.parameters()):
            raise self._diverged()
        self.save()
        return self._progress() >= 1.0

    def _progress(self) -> float:
        """Share of the run that is done: by steps, or by time where that is further."""
        by_steps = self.place.step / self._total
        limit = self._recipe.minutes
        return by_steps if limit is None else max(by_steps, self.place.seconds / (60 * limit))

    def _plan(self, epoch: int) -> list[Ids]:
        return batches(self._store, epoch, self._recipe.seed, self._recipe.tokens)

    def _rate(self) -> float:
        """Linear warm-up, then a cosine down to final_lr."""
        recipe, done = self._recipe, self._progress()
        if done < recipe.warmup:
            return recipe.lr * max(done, 1 / self._total) / recipe.warmup
        along = min(1.0, (done - recipe.warmup) / max(1e-9, 1 - recipe.warmup))
        return recipe.final_lr + (recipe.lr - recipe.final_lr) * (1 + math.cos(math.pi * along)) / 2

    def _step(self, chosen: Ids) -> None:
        """One gradient step on one global batch; each process computes its share of the sequences."""
        rate = self._rate()
        self._optimizer.set_rate(rate)
        self._net.zero_grad(set_to_none=True)
        mine = self._world.share(chosen)
        if len(mine):
            recipe, device = self._recipe, self._target.device
            batch = make_batch(self._store, mine, recipe.unroll, device, prompts_too=recipe.prompts_too)
            self._backward(batch, chosen)
        self._world.add_gradients(self._net.parameters())
        torch.nn.utils.clip_grad_norm_(self._net.parameters(), self._recipe.clip)
        self._optimizer.step()

    def _backward(self, batch: TextBatch, chosen: Ids) -> None:
        recipe, net, device = self._recipe, self._net, self._target.device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        seen = look(self._target, batch)
        teacher = teach(
            self._target.logits, seen.final.index_select(0, batch.teachers), net.target_ids(), dtype
        )
        total: Tensor = torch.zeros((), device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            for step, states in enumerate(unrolled(net, seen, recipe.unroll)):
                rows = batch.steps[step]
                picked = states.index_select(0, rows.student)
                loss, match = step_loss(picked, net.lm_head.weight, teacher, rows.teacher, dtype)
                total = total + recipe.decay**step * loss
                self._meter.add(step, loss, match, rows.student, states.shape[0])
        (total / self._rows(chosen)).backward()  # type: ignore[no-untyped-call]

    def _rows(self, chosen: Ids) -> int:
        """Rows of step 0 in the global batch: what losses are divided by, the same for every process."""
        prompts = 1 if self._recipe.prompts_too else self._store.prompts[chosen]
        said = self._store.lengths[chosen] - prompts
        return max(1, int((said - 1).sum()))

    def _log(self, say: Callable[[str], None]) -> None:
        reading: Reading | None = self._meter.read(self._world)
        if reading is not None:
            if not math.isfinite(reading.loss):
                raise self._diverged()
            place = self.place
            entry: dict[str, object] = {
                "step": place.step,
                "of": self._total,
                "epoch": round(place.epoch + place.batch / max(1, len(self._plan(place.epoch))), 3),
                "seconds": round(place.seconds, 1),
                **reading.row(),
            }
            place.curve.append(entry)
            say(reading.line(place.step, self._total, place.seconds))

    def _diverged(self) -> UserError:
        recipe = self._recipe
        return UserError(
            f"training diverged: after {self.place.step} steps loss or weights are no finite numbers; use "
            f"less than task.trainer.lr={recipe.lr:g} or more than task.trainer.warmup={recipe.warmup:g}"
        )
