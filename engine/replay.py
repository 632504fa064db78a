"""`python -m engine.replay RUN_DIR [key=value ...]`: run a folder's snapshot again and compare the outputs.

Works from the folder alone, in any working directory. Knows no task's inside.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.build import make_config, target_class
from engine.cli.main import CLOSED_PIPE, INTERRUPTED, readable
from engine.compose import Resolved
from engine.errors import UserError
from engine.runs import OUTPUTS, RUN, WORKLOAD, RunFolder, create_run, read_lines, write_json
from engine.snapshot import Snapshot, changed_keys, recompose
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK, MakeEngine, Task, TaskContext, default_engine, run_task

USAGE = """python -m engine.replay RUN_DIR [key=value ...]

Runs the snapshot in RUN_DIR again, with any overrides on top, and says whether the outputs are identical.
Exit code 0: identical; 1: different, or the folder cannot be replayed."""
REPLAY = "replay.json"
Key = tuple[str, int, int, int]  # path of a comparison (verify), request, turn, sample


@dataclass(frozen=True)
class Report:
    """identical: every answer of both runs. differences: where answers first differ. changed: provenance."""

    answers: int
    differences: tuple[Mapping[str, Any], ...]
    changed: Mapping[str, Any]

    @property
    def identical(self) -> bool:
        return not self.differences


def replay(directory: str, extra: Sequence[str] = (), make_engine: MakeEngine = default_engine) -> int:
    """Replay one folder; prints the verdict and the new folder. Returns the exit code."""
    saved = Snapshot.read(directory)
    old = _outputs(saved.path)
    resolved = recompose(saved, extra)
    task = _task(resolved)
    config = resolved.cfg
    run = create_run(resolved.run_dir, config, resolved.overrides, resolved.hydra)
    context = TaskContext(
        config, resolved.overrides, run, make_engine, stdin=_saved_lines(saved), stdout=io.StringIO()
    )
    code = run_task(task, context, "text")
    if code == INTERRUPTED:
        return code
    report = Report(*compare_outputs(old, _outputs(run.path)), provenance_changes(saved, run, config))
    _publish(report, saved, run, as_json=config["task"].get("format") == "json")
    return EXIT_OK if report.identical else EXIT_DIFFERENT


def compare_outputs(
    old: Mapping[Key, Mapping[str, Any]], new: Mapping[Key, Mapping[str, Any]]
) -> tuple[int, tuple[dict[str, Any], ...]]:
    """(answers compared, differences). An answer that was cancelled is compared as far as it went."""
    differences = []
    for key in sorted({*old, *new}):
        difference = _difference(old.get(key), new.get(key))
        if difference is not None:
            _, request, turn, sample = key
            differences.append({"request": request, "turn": turn, "sample": sample, **difference})
    return len(old), tuple(differences)


def provenance_changes(saved: Snapshot, run: RunFolder, config: Mapping[str, Any]) -> dict[str, Any]:
    """What of the provenance and the config is not as it was: name -> [then, now]."""
    now = json.loads((run.path / RUN).read_text(encoding="utf-8"))
    watched = ("git", "versions", "machine", "device", "device_name", "dtype", "seed", "model_files")
    then_facts = {name: saved.facts.get(name) for name in watched}
    now_facts = {name: now.get(name) for name in watched}
    found = {
        name: [_at(then_facts, name), _at(now_facts, name)] for name in changed_keys(then_facts, now_facts)
    }
    settings = [key for key in changed_keys(saved.config, config) if not _ours(key)]
    return {**found, **({"config": settings} if settings else {})}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of `python -m engine.replay`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return EXIT_OK if arguments else EXIT_DIFFERENT
    try:
        code = replay(arguments[0], arguments[1:])
        sys.stdout.flush()
        return code
    except UserError as error:
        print(readable(error), file=sys.stderr)
        return EXIT_DIFFERENT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE


def _ours(key: str) -> bool:
    """Settings that a replay itself changes."""
    return key in ("seed", "step_costs") or key.partition(".")[0] in ("workload", "prompt")


def _at(tree: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted name; file names hold dots, so the whole rest is tried as one key first."""
    node: Any = tree
    rest = dotted
    while rest and isinstance(node, Mapping):
        if rest in node:
            return node[rest]
        head, _, rest = rest.partition(".")
        node = node.get(head)
    return node


def _outputs(path: Path) -> dict[Key, Mapping[str, Any]]:
    """The completions of a run by their place. UserError where the run left none."""
    file = path / OUTPUTS
    rows = read_lines(file) if file.is_file() else []
    if not rows:
        raise UserError(f"{path} holds no outputs to compare with: its run ended before the first answer")
    return {
        (str(row.get("path", "")), int(row["index"]), int(row["turn"]), int(sample["index"])): sample
        for row in rows
        for sample in row["completions"]
    }


def _saved_lines(saved: Snapshot) -> io.StringIO:
    """What the run's user typed, for a task that reads standard input."""
    file = saved.path / WORKLOAD
    rows = read_lines(file) if file.is_file() else []
    return io.StringIO("".join(f"{row['prompt']}\n" for row in rows if "prompt" in row))


def _task(resolved: Resolved) -> Task:
    cls = target_class(resolved.cfg["task"]["_target_"])
    if not issubclass(cls, Task) or not cls.leaves_run:
        raise UserError(f"task {cls.__name__} leaves no outputs, so there is nothing to replay")
    return cls(make_config(cls, resolved.cfg["task"], "task"))


def _difference(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if old is None or new is None:
        return {"position": 0, "reason": "the answer is missing " + ("then" if old is None else "now")}
    a, b = old["token_ids"], new["token_ids"]
    cut = "cancelled" in (old["finish_reason"], new["finish_reason"])
    shorter = min(len(a), len(b))
    position = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    if position < shorter or (not cut and len(a) != len(b)):
        return {"position": position, "reason": "other tokens"}
    if not cut and old["finish_reason"] != new["finish_reason"]:
        return {
            "position": position,
            "reason": f"ended by {old['finish_reason']}, now {new['finish_reason']}",
        }
    return None


def _publish(report: Report, saved: Snapshot, run: RunFolder, *, as_json: bool) -> None:
    document = {
        "replay_of": str(saved.path),
        "identical": report.identical,
        "answers": report.answers,
        "differences": [dict(difference) for difference in report.differences],
        "changed": dict(report.changed),
    }
    write_json(run.path / REPLAY, document)
    if as_json:
        print(json.dumps({**document, "run": str(run.path)}))
        return
    verdict = "identical" if report.identical else "DIFFERENT"
    print(f"{verdict}: {report.answers - len(report.differences)} of {report.answers} answers are the same")
    for d in report.differences[:10]:
        print(f"  answer {d['request'] + 1}, turn {d['turn'] + 1}: {d['reason']} from token {d['position']}")
    for name, change in report.changed.items():
        shown = ", ".join(change) if name == "config" else f"{change[0]} -> {change[1]}"
        print(f"  changed: {name}: {shown}")
    print(run.path)


if __name__ == "__main__":
    sys.exit(main())
