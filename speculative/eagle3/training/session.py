"""What the trainer part does once torch is there: train a draft, then write, measure and describe it.

Knows the pieces of this package and their order; no engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import UserError
from speculative.eagle3.training.card import write_cards
from speculative.eagle3.training.data import Ids, TextStore
from speculative.eagle3.training.evaluate import Acceptance, accepted_runs, measure
from speculative.eagle3.training.export import read_draft, write_draft
from speculative.eagle3.training.loop import Recipe, Training
from speculative.eagle3.training.net import DraftNet, DraftShape
from speculative.eagle3.training.start import begin
from speculative.eagle3.training.target import Target
from speculative.eagle3.training.vocabulary import coverage, most_frequent
from speculative.eagle3.training.world import World

if TYPE_CHECKING:
    from speculative.eagle3.training.trainer import Eagle3Trainer, Job, Texts


@dataclass(frozen=True)
class Fitted:
    """A trained draft. counts: int64 [V] how often the target said each id in the training text. complete:
    whether training came to its planned end. curve: the progress lines as data. text: sizes of the data."""

    net: DraftNet
    target: Target
    counts: Ids
    eos_ids: tuple[int, ...]
    complete: bool
    curve: Sequence[Mapping[str, Any]]
    text: Mapping[str, Any]


def fit(trainer: Eagle3Trainer, job: Job) -> Fitted:
    """See Eagle3Trainer.fit."""
    config, target = trainer.config, job.target
    layer = trainer.draft_layer(target.shape)
    store = _usable(TextStore.of(job.texts), layer.max_positions - config.unroll)
    counts = store.counts(target.shape.vocab_size)
    vocabulary = most_frequent(counts, config.draft_vocab, tuple(job.eos_ids))
    aux = len(trainer.aux_layers(target.shape)) * target.shape.hidden_size
    net = DraftNet(DraftShape(layer, aux, len(vocabulary.ids)), vocabulary).to(target.device)
    begin(net, target, store, config.seed)
    world = World(job.rank, job.size, target.device)
    training = Training(net, target, store, _recipe(trainer), world, job.folder)
    if job.resume is not None:
        training.resume(job.resume)
    job.say(
        f"training text: {len(store)} sequences, {len(store.tokens)} tokens, {store.said} of them the "
        f"target's own; {len(vocabulary.ids)} draft tokens cover {coverage(counts, vocabulary):.2%} of "
        f"these; the draft has {sum(p.numel() for p in net.parameters()) / 1e6:.1f}M parameters"
    )
    complete = training.run(job.stopped, job.say)
    text = {"sequences": len(store), "tokens": len(store.tokens), "answer_tokens": store.said}
    run = {"steps": training.place.step, "seconds": round(training.place.seconds, 1)}
    return Fitted(net, target, counts, tuple(job.eos_ids), complete, training.place.curve, {**text, **run})


def export(
    trainer: Eagle3Trainer,
    fitted: Fitted,
    folder: Path,
    answers: Mapping[str, Texts],
    facts: Mapping[str, Any],
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """See Eagle3Trainer.export."""
    config, target = trainer.config, fitted.target
    layers = trainer.aux_layers(target.shape)
    write_draft(folder, fitted.net, _kept(fitted, config.export_vocab), layers, config.dtype)
    stores = {name: TextStore.of(texts) for name, texts in answers.items()}
    figures = _figures(trainer, fitted, read_draft(folder, target.device), stores, stopped)
    unmeasured = [name for name in stores if name not in figures["sets"]]
    if not unmeasured:
        card = {
            **facts,
            "text": dict(fitted.text),
            "recipe": dataclasses.asdict(config),
            "complete": fitted.complete,
        }
        write_cards(folder, target.shape, figures, fitted.curve, card, config.drafts)
    return {**figures, "unmeasured": unmeasured}


def _figures(
    trainer: Eagle3Trainer,
    fitted: Fitted,
    written: DraftNet,
    stores: Mapping[str, TextStore],
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """Acceptance of the draft as it was written, and of draft vocabularies of other sizes, set by set until
    `stopped`."""
    config, target = trainer.config, fitted.target
    sizes = sorted({*config.compare_vocab, config.draft_vocab, len(written.d2t)})
    sets: dict[str, Any] = {}
    by_vocab: dict[str, dict[str, float]] = {str(size): {} for size in (sizes if stores else ())}
    for name, store in stores.items():
        if stopped():
            break
        sets[name] = _acceptance(trainer, written, target, store)
        for size in sizes:
            found = _measured(trainer, fitted.net, target, store, _kept(fitted, size))
            by_vocab[str(size)][name] = round(found.accept_length, 4)
    return {
        "sets": sets,
        "by_vocab": by_vocab,
        "coverage": {str(size): _covered(fitted, size) for size in sizes},
    }


def _usable(store: TextStore, longest: int) -> TextStore:
    kept = store.shorter_than(longest) if len(store) else store
    if not len(kept):
        raise UserError(
            "the training text holds no answer of two tokens or more, so there is nothing to learn; give "
            "task.prompts=[FILE] or task.self_prompts=1000"
        )
    return kept


def _recipe(trainer: Eagle3Trainer) -> Recipe:
    values = dataclasses.asdict(trainer.config)
    renamed = {**values, "tokens": values["batch_tokens"]}
    return Recipe(**{field.name: renamed[field.name] for field in dataclasses.fields(Recipe)})


def _kept(fitted: Fitted, size: int | None) -> Tensor:
    """Bool [Vd]: the `size` most frequent draft tokens and those that end a sequence."""
    net = fitted.net
    own = fitted.counts[net.target_ids().cpu().numpy()]
    ends = tuple(np.flatnonzero(np.isin(net.target_ids().cpu().numpy(), fitted.eos_ids)).tolist())
    chosen = most_frequent(own, size or len(own), ends)
    return torch.from_numpy(chosen.t2d).to(net.d2t.device)


def _covered(fitted: Fitted, size: int) -> float:
    return round(coverage(fitted.counts, most_frequent(fitted.counts, size, fitted.eos_ids)), 5)


def _measured(
    trainer: Eagle3Trainer, net: DraftNet, target: Target, store: TextStore, allowed: Tensor
) -> Acceptance:
    config = trainer.config
    runs: list[NDArray[np.int64]] = accepted_runs(
        net, target, store, config.drafts, allowed, config.batch_tokens
    )
    return measure(runs, config.drafts)


def _acceptance(trainer: Eagle3Trainer, net: DraftNet, target: Target, store: TextStore) -> dict[str, Any]:
    everything = torch.ones(len(net.d2t), dtype=torch.bool, device=target.device)
    found = _measured(trainer, net, target, store, everything)
    return {
        "accept_length": round(found.accept_length, 4),
        "acceptance_per_position": [round(share, 4) for share in found.positions],
        "steps": found.steps,
        "answers": found.answers,
    }
