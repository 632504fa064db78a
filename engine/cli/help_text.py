"""What `--help` prints: every group and option with the first comment line of its yaml. Imports no part."""

from __future__ import annotations

import argparse

from engine import __version__
from engine.build import config_keys
from engine.cli.flags import flag_parser
from engine.conf_tree import ConfTree, Option, conf_tree
from engine.sweeps.states import FAILURES
from engine.sweeps.study import Study

_HEAD = """\
syncless {version}: text from language models, composed from a command line

usage: syncless [GROUP=OPTION ...] [GROUP.KEY=VALUE ...] [NAME=VALUE ...] [FLAG ...]
       (python -m engine takes the same)
"""

_EXAMPLES = """\
examples
  syncless prompt="Write a haiku!" sampling.max_tokens=64
  syncless task=chat
  syncless task=explain attention=triton        what would run, why, and what forbids it
  syncless --cfg job -p cache                   every key of one group and its value
  syncless -m spec=none,ngram overlap=none,future --dry-run   the cells of a sweep, and what forbids them
"""


def help_text() -> str:
    """The whole text; an asterisk marks each group's default."""
    tree = conf_tree()
    blocks = [_HEAD.format(version=__version__), _groups(tree), _values(tree), _sweeps(tree), _flags()]
    return "\n".join([*blocks, _EXAMPLES.rstrip()])


def _groups(tree: ConfTree) -> str:
    order = [*tree.defaults, *(group for group in tree.groups if group not in tree.defaults)]
    width = max(len(name) for options in tree.groups.values() for name in options)
    lines = ["groups (* is the default)"]
    for group in order:
        lines.append(f"  {group}")
        options = tree.groups.get(group, {})
        lines += [_option(option, tree.defaults.get(group), width) for option in options.values()]
    return "\n".join(lines) + "\n"


def _option(option: Option, default: str | None, width: int) -> str:
    mark = "*" if option.name == default else " "
    return f"   {mark} {option.name:<{width}}  {option.summary}".rstrip()


def _values(tree: ConfTree) -> str:
    shown = {name: "null" if value is None else value for name, value in tree.scalars.items()}
    cells = {name: f"{name}={value}" for name, value in shown.items()}
    width = max(len(cell) for cell in cells.values())
    lines = [f"  {cell:<{width}}  {tree.notes.get(name, '')}".rstrip() for name, cell in cells.items()]
    return "\n".join(["values", *lines]) + "\n"


def _sweeps(tree: ConfTree) -> str:
    """Committed studies, and what goes with any sweep."""
    cells = {f"{study.group}={study.name}": study.summary for study in tree.studies.values()} | {
        "sweep.KEY=VALUE": "settings of the sweep: " + ", ".join(config_keys(Study)),
        "resume=FOLDER": "go on with a sweep that was stopped; finished jobs are left alone",
        "retry=failed": f"with resume: do jobs that failed again; or one of {', '.join(FAILURES[1:])}",
    }
    width = max(len(cell) for cell in cells)
    lines = [f"  {cell:<{width}}  {note}" for cell, note in cells.items()]
    return "\n".join(["sweeps (-m, or a study of conf/sweep or conf/experiment)", *lines]) + "\n"


def _flags() -> str:
    actions = [a for a in flag_parser()._actions if a.option_strings and a.help != argparse.SUPPRESS]
    cells = [", ".join(action.option_strings) + _choices(action) for action in actions]
    width = max(len(cell) for cell in cells)
    lines = [f"  {cell:<{width}}  {action.help}" for cell, action in zip(cells, actions, strict=True)]
    return "\n".join(["flags", *lines]) + "\n"


def _choices(action: argparse.Action) -> str:
    return f" {'|'.join(action.choices)}" if action.choices else ""
