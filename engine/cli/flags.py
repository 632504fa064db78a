"""The flags of the command line: our own, and those of Hydra that make sense with a fixed conf folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from engine.errors import UserError
from engine.typed import nearest

CFG_KINDS = ("job", "hydra", "all")
INFO_KINDS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass(frozen=True)
class Flags:
    """What was asked for. cfg, info: what to show instead of running. dry_run: list a sweep's cells only.
    job, leash: a job of a sweep, see engine/sweeps/process.py. overrides: all that is no flag."""

    overrides: tuple[str, ...]
    help: bool = False
    version: bool = False
    multirun: bool = False
    dry_run: bool = False
    job: str | None = None
    leash: int | None = None
    cfg: str | None = None
    resolve: bool = False
    package: str | None = None
    info: str | None = None


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of leaving the process with its own exit code."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; syncless --help lists what there is")


def flag_parser() -> argparse.ArgumentParser:
    """Also the source of the flags' lines in the help text."""
    parser = _Parser("syncless", add_help=False, allow_abbrev=False)
    parser.add_argument("--help", "-h", action="store_true", help="this text")
    parser.add_argument("--version", action="store_true", help="the version")
    parser.add_argument(
        "--multirun", "-m", action="store_true", help="a sweep: every combination of a,b,c values"
    )
    parser.add_argument("--dry-run", action="store_true", help="with a sweep: its cells and their verdicts")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--leash", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--cfg", "-c", choices=CFG_KINDS, help="Hydra: print the composed config and stop")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: resolve interpolations")
    parser.add_argument("--package", "-p", help="with --cfg: only this part of it")
    parser.add_argument(
        "--info", "-i", nargs="?", const="all", choices=INFO_KINDS, help="Hydra: how the config was found"
    )
    parser.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    return parser


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Raises UserError for an unknown flag, or for text that is not UTF-8."""
    for argument in arguments:
        if not argument.isprintable() and any(0xD800 <= ord(letter) <= 0xDFFF for letter in argument):
            raise UserError(f"{argument.encode('utf-8', 'replace').decode()!r} is not valid UTF-8 text")
    parser = flag_parser()
    flags = [argument for argument in arguments if argument.startswith("-")]
    known = [name for action in parser._actions for name in action.option_strings]
    for flag in flags:
        if flag.partition("=")[0] not in known:
            raise UserError(f"there is no flag {flag} (syncless --help lists them){nearest(flag, known)}")
    parsed = vars(parser.parse_intermixed_args(list(arguments)))
    return Flags(tuple(parsed.pop("overrides")), **parsed)
