"""What a command line does once its flags are read: compose, check, run the task; or hand over to a sweep.

Knows the order of these, not what any task or rule is about.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra

from engine import rules
from engine.build import make_config, target_class
from engine.cli.flags import Flags
from engine.compose import Draft, compose_draft, search_path
from engine.conf_tree import ROOT_NAME
from engine.errors import UserError
from engine.hints import hint_of_launches
from engine.replay.engines import recorded_engines
from engine.runs import create_run
from engine.sweeps.process import hold_leash
from engine.sweeps.request import is_sweep
from engine.sweeps.sweep import run_sweep
from engine.tasks.base import Task, TaskContext, default_engine, run_task


def execute(flags: Flags) -> int:
    """Run the command line; returns the exit code. Raises UserError for anything the user can mend."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    if flags.job is not None:
        return run_job(flags)
    if flags.multirun or is_sweep(flags.overrides):
        return run_sweep(flags.overrides, dry_run=flags.dry_run)
    if flags.dry_run:
        raise UserError("--dry-run lists the cells of a sweep: add -m, sweep=NAME or experiment=NAME")
    draft = compose_draft(flags.overrides)
    if flags.cfg or flags.info:
        _require(draft.problems)
        return _show(flags, draft.resolved.overrides)
    return run_one(draft)


def run_one(draft: Draft, directory: str | None = None) -> int:
    """Check, make the run folder, run the task. directory: a folder that Hydra has made for this job."""
    resolved = draft.resolved
    task = _task(draft)
    violations = [] if task.shows_violations else rules.violations(resolved)
    _require([*draft.problems, *violations])
    run = None
    if task.leaves_run:
        hint_of_launches(resolved)
        where = directory or resolved.run_dir
        run = create_run(where, resolved.cfg, resolved.overrides, resolved.hydra, exclusive=directory is None)
    engines = default_engine if run is None else recorded_engines(run)
    context = TaskContext(resolved.cfg, resolved.overrides, run, engines)
    return run_task(task, context, str(resolved.cfg["task"].get("format", "text")))


def run_job(flags: Flags) -> int:
    """One job of a sweep, in the folder that its supervisor has made; it ends when that one does."""
    if flags.leash is not None:
        hold_leash(flags.leash)
    return run_one(compose_draft(flags.overrides), flags.job)


def _task(draft: Draft) -> Task:
    node: Any = draft.resolved.cfg["task"]
    cls = target_class(node.get("_target_"))
    if not issubclass(cls, Task):
        raise UserError(f"task={draft.resolved.choices.get('task')}: {cls.__name__} is no task")
    broken = [problem for problem in draft.problems if problem.startswith("task")]
    _require(draft.problems if broken else ())
    return cls(make_config(cls, node, "task"))


def _show(flags: Flags, overrides: Sequence[str]) -> int:
    hydra = Hydra.create_main_hydra2("syncless", search_path())
    try:
        if flags.cfg:
            hydra.show_cfg(ROOT_NAME, list(overrides), flags.cfg, flags.package, flags.resolve)
        else:
            hydra.show_info(str(flags.info), ROOT_NAME, list(overrides))
    finally:
        GlobalHydra.instance().clear()
    return 0


def _require(problems: Sequence[str]) -> None:
    if problems:
        raise UserError("\n".join(problems))
