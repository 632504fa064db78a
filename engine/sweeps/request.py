"""The command line of a sweep taken apart: what to run, how, and what to go on with. Composes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.conf_tree import EXPERIMENTS, STUDIES
from engine.errors import UserError
from engine.quoting import quote
from engine.sweeps.states import FAILURES
from engine.typed import nearest

RESUME, RETRY, FOLDER = "resume", "retry", "hydra.sweep.dir"
NOT_HERE = {  # settings of Hydra that have no effect on a sweep: what does instead
    "hydra.run.dir": "hydra.sweep.dir=FOLDER is the sweep's folder",
    "hydra.sweep.subdir": "a job's folder is named after the hash of its config",
    "hydra/sweeper": "sweep.trials=N searches with Optuna",
    "hydra.sweeper": "sweep.trials=N searches with Optuna",
    "hydra.mode": "-m or sweep=NAME starts a sweep",
}


@dataclass(frozen=True)
class SweepRequest:
    """study: a name in conf/`group`. settings: `sweep.key=value`. overrides: of the jobs. hydra: for Hydra
    itself (launcher, sweep folder). resume: folder of a sweep. retry: states whose jobs are done again."""

    study: str | None
    group: str
    settings: tuple[str, ...]
    overrides: tuple[str, ...]
    hydra: tuple[str, ...]
    resume: str | None
    retry: frozenset[str]


def is_sweep(overrides: Sequence[str]) -> bool:
    """Whether a command line without -m asks for a sweep all the same."""
    return any(_key(line) in (STUDIES, EXPERIMENTS, RESUME, RETRY) or _is_setting(line) for line in overrides)


def sweep_request(arguments: Sequence[str]) -> SweepRequest:
    """Sort the overrides. UserError for what excludes each other, or is given twice."""
    own = {key: _only(key, arguments) for key in (STUDIES, EXPERIMENTS, RESUME, RETRY)}
    settings = tuple(line for line in arguments if _is_setting(line))
    hydra = tuple(line for line in arguments if _key(line).lstrip("+~").startswith(("hydra.", "hydra/")))
    rest = tuple(line for line in arguments if line not in (*settings, *hydra) and _key(line) not in own)
    if own[STUDIES] and own[EXPERIMENTS]:
        raise UserError(
            f"sweep={own[STUDIES]} and experiment={own[EXPERIMENTS]} are two sweeps: give one of them"
        )
    group = EXPERIMENTS if own[EXPERIMENTS] else STUDIES
    retry = _states(own[RETRY])
    request = SweepRequest(own[group], group, settings, rest, tuple(map(_quoted, hydra)), own[RESUME], retry)
    _check(request, own[RETRY])
    return request


def _check(request: SweepRequest, retry: str | None) -> None:
    for line in request.hydra:
        found = next((why for key, why in NOT_HERE.items() if _within(_key(line).lstrip("+"), key)), None)
        if found:
            raise UserError(f"{line} has no effect on a sweep: {found}")
    if request.resume is None and retry is not None:
        raise UserError(f"retry={retry} goes with resume=DIR: a new sweep has nothing to do again")
    folder = tuple(line for line in request.hydra if _key(line) == FOLDER)
    extra = [*([f"{request.group}={request.study}"] if request.study else []), *request.overrides, *folder]
    if request.resume is not None and extra:
        raise UserError(
            f"resume={request.resume} takes its jobs from that folder, so {extra[0]} has no place beside it; "
            "only retry=, sweep.KEY= and hydra/launcher= do"
        )


def _within(key: str, parent: str) -> bool:
    return key == parent or key.startswith(f"{parent}.")


def _states(retry: str | None) -> frozenset[str]:
    """retry=failed means every failure; a state of its own name only that one."""
    if retry is None:
        return frozenset()
    names = [name.strip() for name in retry.split(",")]
    unknown = [name for name in names if name not in FAILURES]
    if unknown:
        choices = ", ".join(FAILURES)
        raise UserError(
            f"retry={retry}: it can be {choices} (failed: all of them){nearest(unknown[0], FAILURES)}"
        )
    return frozenset(FAILURES if "failed" in names else names)


def _only(key: str, arguments: Sequence[str]) -> str | None:
    given = [line.partition("=")[2].strip() for line in arguments if _key(line) == key]
    if len(given) > 1:
        raise UserError(f"{key}= is given {len(given)} times; give it once")
    if given and not given[0]:
        raise UserError(f"{key}= is empty; give it a value, or leave it out")
    return given[0] if given else None


def _quoted(line: str) -> str:
    """A folder's name as it was typed; one that is made of interpolations is Hydra's to read."""
    key, _, value = line.partition("=")
    return f"{key}={quote(value)}" if key == FOLDER and "${" not in value else line


def _key(line: str) -> str:
    return line.partition("=")[0] if "=" in line else ""


def _is_setting(line: str) -> bool:
    return _key(line).lstrip("+").startswith(f"{STUDIES}.")
