"""Runs a folder's snapshot again and compares the answers. Knows no task's inside."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence

from engine.build import make_config, target_class
from engine.cli.main import INTERRUPTED
from engine.compose import Resolved
from engine.errors import UserError
from engine.replay.changes import Change, Stack, stack_changes
from engine.replay.engines import Replayed
from engine.replay.outputs import Samples, compare_outputs, read_outputs
from engine.replay.verdict import Verdict
from engine.replay.workload import in_order
from engine.runs import RESULT, RUN, WORKLOAD, RunFolder, create_run, read_lines, write_json
from engine.snapshot import Again, Snapshot, changed_keys, new_keys, recompose, value_at
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK, Task, TaskContext, run_task
from engine.workloads.single import STDIN

REPLAY = "replay.json"
COMPOSING = (
    "arrivals",
    "cache",
    "eval",
    "overlap",
    "prompt",
    "sampling",
    "scheduler",
    "spec",
    "task",
    "workload",
)
HARMLESS = ("task.format", "task.show", "cache.tokens")  # a pool that is large enough changes nothing


def replay(directory: str, extra: Sequence[str] = ()) -> int:
    """Replay one folder; prints the verdict and the new folder. Returns the exit code."""
    saved = Snapshot.read(directory)
    old = _old_outputs(saved)
    again = recompose(saved, extra)
    task = _task(again.resolved)
    resolved = again.resolved
    run = create_run(resolved.run_dir, resolved.cfg, resolved.overrides, resolved.hydra)
    run.record(replay_of=str(saved.path), cwd=saved.facts.get("cwd"))
    stopped = _stopped(saved)
    engines = Replayed(saved.path, run, stopped, _not_followed(again.changed))
    follows = engines.first().guide is not None
    config = in_order(again.config, saved.path / WORKLOAD) if follows else again.config
    context = TaskContext(
        config, resolved.overrides, run, engines, stdin=_saved_lines(saved), stdout=io.StringIO()
    )
    code = run_task(task, context, "text")
    if code == INTERRUPTED:
        return code
    if config is not again.config:
        shutil.copyfile(saved.path / WORKLOAD, run.path / WORKLOAD)  # with the times that it was run by
    compared = compare_outputs(old, read_outputs(run.path), stopped=stopped)
    courses = [course.row() for course in engines.courses]
    verdict = Verdict(compared, courses, _changes(saved, run), *_settings(saved, again))
    _publish(verdict, saved, run, as_json=again.config["task"].get("format") == "json")
    return EXIT_OK if verdict.identical else EXIT_DIFFERENT


def _old_outputs(saved: Snapshot) -> Samples:
    """UserError where there is nothing to compare with."""
    found = read_outputs(saved.path)
    if not found:
        raise UserError(
            f"{saved.path} holds no outputs to compare with: its run ended before the first answer"
        )
    return found


def _stopped(saved: Snapshot) -> bool:
    """Whether the run did not reach its end: interrupted, or killed before it could write a result."""
    try:
        result = json.loads((saved.path / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return bool(isinstance(result, dict) and result.get("interrupted"))


def _not_followed(changed: Sequence[str]) -> str:
    """Why the recorded batches cannot be those of a run with these changes; empty where they can."""
    ours = [key for key in changed if key.partition(".")[0] in COMPOSING and key not in HARMLESS]
    return f"they are others by {', '.join(ours)}" if ours else ""


def _saved_lines(saved: Snapshot) -> io.StringIO:
    """What the run's user typed, for a task that reads standard input; a prompt of the command line is the
    first of the kept lines, and comes from the config again."""
    file = saved.path / WORKLOAD
    rows = read_lines(file) if file.is_file() else []
    typed = [row["prompt"] for row in rows if "prompt" in row]
    given = saved.config.get("prompt") not in (None, STDIN)
    return io.StringIO("".join(f"{line}\n" for line in typed[given:]))


def _task(resolved: Resolved) -> Task:
    cls = target_class(resolved.cfg["task"]["_target_"])
    if not issubclass(cls, Task) or not cls.leaves_run:
        raise UserError(f"task {cls.__name__} leaves no outputs, so there is nothing to replay")
    task: Task = cls(make_config(cls, resolved.cfg["task"], "task"))
    return task


def _changes(saved: Snapshot, run: RunFolder) -> dict[str, Change]:
    now = json.loads((run.path / RUN).read_text(encoding="utf-8"))
    return stack_changes(Stack.of(saved.path, saved.facts), Stack.of(run.path, now))


def _settings(saved: Snapshot, again: Again) -> tuple[dict[str, Change], list[str]]:
    """(what new overrides changed, settings that the snapshot did not know)."""
    unknown = new_keys(saved.config, again.resolved.cfg)
    keys = [key for key in changed_keys(saved.config, again.resolved.cfg) if key not in unknown]
    return {key: (value_at(saved.config, key), value_at(again.resolved.cfg, key)) for key in keys}, unknown


def _publish(verdict: Verdict, saved: Snapshot, run: RunFolder, *, as_json: bool) -> None:
    document = {"replay_of": str(saved.path), **verdict.document()}
    write_json(run.path / REPLAY, document)
    if as_json:
        print(json.dumps({**document, "run": str(run.path)}))
    else:
        print("\n".join([*verdict.lines(), str(run.path)]))
