"""The EAGLE3 trainer as a part: its options, and the three things a task asks of it: fit, measure, export.

Importable without torch. Knows no engine: target and texts are given to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.build import choice, number
from engine.errors import UserError
from engine.lazy import lazy_import
from engine.models.shape import ModelShape
from speculative.eagle3.training.openings import ABOUT_TEXT, OPENINGS, TEXT_REQUESTS

if TYPE_CHECKING:
    from speculative.eagle3.training import session
    from speculative.eagle3.training.target import Target
else:
    session = lazy_import("speculative.eagle3.training.session")

Texts = Sequence[tuple[Sequence[int], int]]
STATE = "training_state.pt"  # in the folder of a run that can be resumed


@dataclass(frozen=True)
class Job:
    """One run. texts: (ids, prompt length) of each sequence. rank, size: this process among those of the run.
    folder: for checkpoints. resume: a folder or file of an earlier run. stopped: asked between two steps."""

    target: Target
    texts: Texts
    eos_ids: Sequence[int]
    rank: int
    size: int
    folder: Path
    resume: Path | None
    stopped: Callable[[], bool]
    say: Callable[[str], None]


class Eagle3Trainer:
    """Trains a draft for one target (Li et al. 2025, EAGLE-3)."""

    openings, about_text, text_requests = OPENINGS, ABOUT_TEXT, TEXT_REQUESTS
    checkpoint = STATE

    @dataclass(frozen=True)
    class Config:
        """Sizes: intermediate, heads and kv_heads null: the target's. draft_vocab: tokens that are trained;
        export_vocab: how many of them the written head keeps, null: all; compare_vocab: further sizes whose
        acceptance is measured. aux_layers: target layers whose inputs are read, null: early, middle, late.

        Training: see Recipe in loop.py; drafts: chain that is measured.
        """

        intermediate: int | None = number(None, ge=1)
        heads: int | None = number(None, ge=1)
        kv_heads: int | None = number(None, ge=1)
        draft_vocab: int = number(8192, ge=2)
        export_vocab: int | None = number(None, ge=2)
        compare_vocab: tuple[int, ...] = ()
        aux_layers: tuple[int, ...] | None = None
        max_positions: int | None = number(None, ge=2)
        epochs: int = number(4, ge=1)
        minutes: float | None = number(None, gt=0)
        batch_tokens: int = number(32768, ge=1)
        unroll: int = number(4, ge=1, le=16)
        decay: float = number(0.8, gt=0, le=1)
        prompts_too: bool = False
        optimizer: str = choice("muon", ("adamw", "muon"))
        lr: float = number(2e-3, gt=0)
        final_lr: float = number(1e-5, ge=0)
        warmup: float = number(0.015, ge=0, lt=1)
        weight_decay: float = number(0.0, ge=0)
        clip: float = number(0.5, gt=0)
        drafts: int = number(4, ge=1, le=15)
        dtype: str = choice("bfloat16", ("float32", "bfloat16", "float16"))
        seed: int = number(0, ge=0)
        log_seconds: float = number(10.0, ge=0)
        save_seconds: float = number(120.0, ge=0)

    def __init__(self, config: Config) -> None:
        self.config = config
        kept = config.export_vocab or config.draft_vocab
        for name, value in [("export_vocab", kept), *(("compare_vocab", v) for v in config.compare_vocab)]:
            if not 2 <= value <= config.draft_vocab:
                raise UserError(
                    f"task.trainer.{name}={value} is not among the trained tokens: it has to lie between 2 "
                    f"and task.trainer.draft_vocab={config.draft_vocab}"
                )

    def aux_layers(self, shape: ModelShape) -> tuple[int, ...]:
        """Layers of the target whose inputs the draft reads, ascending; `num_layers` is the last output.

        EAGLE-3, section 3.1: early, middle, late. A target of fewer than seven layers: first, middle, last.
        """
        count = shape.num_layers
        layers = self.config.aux_layers
        if layers is None:
            if count < 3:
                raise UserError(
                    f"the target has {count} layers, and a draft reads three of its states: give "
                    "task.trainer.aux_layers=[1] or the like"
                )
            return (2, count // 2, count - 3) if count >= 7 else (1, (count + 1) // 2, count)
        if not layers or list(layers) != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] <= count:
            raise UserError(
                f"task.trainer.aux_layers={list(layers)}: give ascending layers between 1 and {count}, the "
                "number of the target's layers"
            )
        return tuple(layers)

    def draft_layer(self, target: ModelShape) -> ModelShape:
        """The draft's decoder layer for this target. UserError for sizes that do not fit together."""
        config = self.config
        heads = config.heads or target.num_heads
        kv_heads = config.kv_heads or (target.num_kv_heads if config.heads is None else heads)
        if heads % kv_heads:
            raise UserError(
                f"task.trainer.heads={heads} is no multiple of task.trainer.kv_heads={kv_heads}; each KV "
                "head serves the same number of query heads"
            )
        if config.draft_vocab > target.vocab_size:
            raise UserError(
                f"task.trainer.draft_vocab={config.draft_vocab} exceeds the target's vocabulary of "
                f"{target.vocab_size}; choose that or less"
            )
        return ModelShape(
            architecture="EAGLE3",
            vocab_size=target.vocab_size,
            hidden_size=target.hidden_size,
            num_layers=1,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=target.head_dim,
            intermediate_size=config.intermediate or target.intermediate_size,
            max_positions=config.max_positions or target.max_positions,
            rms_eps=target.rms_eps,
            rope_theta=target.rope_theta,
            rope_scaling=target.rope_scaling,
        )

    def fit(
        self,
        target: Target,
        texts: Texts,
        eos_ids: Sequence[int],
        *,
        folder: Path,
        stopped: Callable[[], bool],
        say: Callable[[str], None],
        resume: Path | None = None,
        rank: int = 0,
        size: int = 1,
    ) -> session.Fitted:
        """Train; every process calls it. See Job for the arguments. UserError when the texts hold nothing to
        learn from, or the checkpoint is of another run."""
        job = Job(target, texts, eos_ids, rank, size, folder, resume, stopped, say)
        return session.fit(self, job)

    def export(
        self,
        fitted: session.Fitted,
        folder: Path,
        answers: Mapping[str, Texts],
        facts: Mapping[str, Any],
        stopped: Callable[[], bool],
    ) -> dict[str, Any]:
        """Write the draft, measure what was written on `answers` (name -> greedy answers of the target),
        write the cards; the figures. facts: what the cards say of data, command and hardware. stopped: asked
        before each set is measured; where it is true there are no cards. `unmeasured`: sets that are missing.
        """
        return session.export(self, fitted, folder, answers, facts, stopped)
