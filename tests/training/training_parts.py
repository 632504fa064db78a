"""A tiny target with text of its own, and small drafts: what the trainer's tests share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from support.engines import TINY, make

from engine.llm import LLM
from engine.params import SamplingParams
from engine.target_states import TargetStates
from speculative.eagle3.training.data import TextStore
from speculative.eagle3.training.loop import Recipe, Training
from speculative.eagle3.training.net import DraftNet, DraftShape
from speculative.eagle3.training.start import begin
from speculative.eagle3.training.trainer import Eagle3Trainer
from speculative.eagle3.training.vocabulary import most_frequent
from speculative.eagle3.training.world import World

Texts = tuple[tuple[tuple[int, ...], int], ...]
CPU = torch.device("cpu")
LAYERS = (1, 2, 3)


@cache
def engine() -> LLM:
    """A tiny random model; its greedy text is arbitrary but lawful: a draft can learn it."""
    return make(*TINY, "attention=torch", "cache.max_context=512")


@cache
def texts(count: int = 6, answer: int = 20) -> Texts:
    """Greedy answers to random prompts of different length."""
    draw = np.random.default_rng(5)
    prompts = [draw.integers(0, 256, size=4 + 3 * i).tolist() for i in range(count)]
    outputs = engine().generate(prompts, SamplingParams(max_tokens=answer, ignore_eos=True))
    return tuple(((*o.prompt_ids, *o.completions[0].token_ids), len(o.prompt_ids)) for o in outputs)


@cache
def target() -> TargetStates:
    return engine().target_states(LAYERS)


def store(chosen: Sequence[tuple[tuple[int, ...], int]] | None = None) -> TextStore:
    return TextStore.of(texts() if chosen is None else chosen)


def new_net(
    text: TextStore, *, vocab: int = 512, seed: int = 0, like: TargetStates | None = None
) -> DraftNet:
    """A draft for the tiny target, begun as training begins it."""
    like = target() if like is None else like
    config = Eagle3Trainer.Config(draft_vocab=vocab, intermediate=64)
    layer = Eagle3Trainer(config).draft_layer(like.shape)
    vocabulary = most_frequent(text.counts(like.shape.vocab_size), vocab)
    net = DraftNet(DraftShape(layer, 3 * like.shape.hidden_size, len(vocabulary.ids)), vocabulary)
    begin(net, like, text, seed)
    return net


def recipe(**changes: object) -> Recipe:
    values: dict[str, object] = {
        "epochs": 4,
        "minutes": None,
        "tokens": 4096,
        "unroll": 4,
        "decay": 0.8,
        "prompts_too": False,
        "optimizer": "adamw",
        "lr": 3e-3,
        "final_lr": 1e-4,
        "warmup": 0.05,
        "weight_decay": 0.0,
        "clip": 1.0,
        "seed": 1,
        "log_seconds": 1e9,
        "save_seconds": 1e9,
    }
    return Recipe(**{**values, **changes})  # type: ignore[arg-type]


def train(
    net: DraftNet,
    text: TextStore,
    how: Recipe,
    folder: Path,
    *,
    like: object = None,
    world: World | None = None,
) -> Training:
    """Train to the end."""
    training = Training(
        net,
        target() if like is None else like,  # type: ignore[arg-type]
        text,
        how,
        world or World(0, 1, CPU),
        folder,
    )
    training.run(lambda: False, lambda line: None)
    return training
