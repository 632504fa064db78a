"""The command line of a sweep taken apart: what to run, how, and what to go on with. Composes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.build import nearest
from engine.conf_tree import STUDIES
from engine.errors import UserError
from engine.sweeps.states import FAILURES

RESUME, RETRY = "resume", "retry"


@dataclass(frozen=True)
class SweepRequest:
    """study: a name in conf/sweep. settings: `sweep.key=value`. overrides: of the jobs. hydra: for Hydra
    itself (launcher, sweep folder). resume: folder of a sweep. retry: states whose jobs are done again."""

    study: str | None
    settings: tuple[str, ...]
    overrides: tuple[str, ...]
    hydra: tuple[str, ...]
    resume: str | None
    retry: frozenset[str]


def is_sweep(overrides: Sequence[str]) -> bool:
    """Whether a command line without -m asks for a sweep all the same."""
    return any(_key(line) in (STUDIES, RESUME, RETRY) or _is_setting(line) for line in overrides)


def sweep_request(arguments: Sequence[str]) -> SweepRequest:
    """Sort the overrides. UserError for what excludes each other, or is given twice."""
    own = {key: _only(key, arguments) for key in (STUDIES, RESUME, RETRY)}
    settings = tuple(line for line in arguments if _is_setting(line))
    hydra = tuple(line for line in arguments if _key(line).lstrip("+~").startswith(("hydra.", "hydra/")))
    rest = tuple(line for line in arguments if line not in (*settings, *hydra) and _key(line) not in own)
    request = SweepRequest(own[STUDIES], settings, rest, hydra, own[RESUME], _states(own[RETRY]))
    _check(request, own[RETRY])
    return request


def _check(request: SweepRequest, retry: str | None) -> None:
    if request.resume is None and retry is not None:
        raise UserError(f"retry={retry} goes with resume=DIR: a new sweep has nothing to do again")
    if request.resume is not None and (request.study or request.overrides):
        extra = f"sweep={request.study}" if request.study else request.overrides[0]
        raise UserError(
            f"resume={request.resume} takes its jobs from that folder, so {extra} has no place beside it; "
            "only retry=, sweep.KEY= and hydra/launcher= do"
        )


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


def _key(line: str) -> str:
    return line.partition("=")[0] if "=" in line else ""


def _is_setting(line: str) -> bool:
    return _key(line).lstrip("+").startswith(f"{STUDIES}.")
