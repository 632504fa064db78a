"""What every GPU benchmark shares: the command line, the heading with hardware and versions, tables, JSON.

Knows nothing of what is measured.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.code_state import PACKAGE_ROOT, git_state
from engine.provenance import device_facts, machine, versions

Row = dict[str, Any]
_BEGAN = time.perf_counter()
SILENCE = 45  # seconds without a word after which it is said where the program stands


@dataclass
class Section:
    """One table. rows: column -> value; the columns are those of the first row. note: a sentence below."""

    title: str
    rows: list[Row] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        lines = [f"### {self.title}", ""]
        if self.rows:
            names = list(dict.fromkeys(name for row in self.rows for name in row))
            lines += [_line(names), _line(["---"] * len(names))]
            lines += [_line([shown(row.get(name)) for name in names]) for row in self.rows]
        return "\n".join([*lines, "", self.note] if self.note else lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def shown(value: Any) -> str:
    """Three significant digits; nothing measured: a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def numbers(text: str) -> list[int]:
    """1,8,32 as an argument."""
    found = [int(part) for part in text.split(",")]
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text}: numbers from 1 up, separated by commas")
    return found


class Parser(argparse.ArgumentParser):
    """Takes overrides before, between and behind its options."""

    def parse_args(  # type: ignore[override]  # argparse has overloads for namespaces of one's own
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        return self.parse_intermixed_args(args, namespace)


def parser(about: str | None) -> Parser:
    """The arguments that all have. `overrides` are those of the engine's command line."""
    made = Parser(description=about)
    made.add_argument("--json", type=Path, help="write the report there too")
    made.add_argument("overrides", nargs="*", help="model=dummy model.like=llama-3.1-8b device=cuda ...")
    return made


def preferring(overrides: Sequence[str], *usual: str) -> list[str]:
    """The overrides, and of the usual ones those whose key is not among them."""
    given = {word.partition("=")[0] for word in overrides}
    return [*(word for word in usual if word.partition("=")[0] not in given), *overrides]


def heading(device: str) -> Row:
    """Where and with what a figure was measured."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": device_facts(device),
        "machine": machine(),
        "versions": versions(),
        "git": git_state(PACKAGE_ROOT),
        "command": shlex.join(["python", "-m", _module(), *sys.argv[1:]]),
    }


def _module() -> str:
    """The program's name as `python -m` takes it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return Path(sys.argv[0]).stem if spec is None else str(spec.name)


def publish(head: Row, sections: Sequence[Section], path: Path | None) -> None:
    """Markdown on stdout; the same numbers unrounded as JSON where asked for."""
    _WATCH.rest()
    versions_line = ", ".join(f"{name} {head['versions'].get(name)}" for name in ("torch", "triton"))
    print(f"{head['device'].get('device_name')}, {versions_line}, {head['date']}\n\n`{head['command']}`\n")
    print("\n\n".join(section.markdown() for section in sections), flush=True)
    if path is not None:
        report = {**head, "sections": [vars(section) for section in sections]}
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


class Watch:
    """Says where the program stands when it has been silent for too long. Not faulthandler: its watchdog
    reads the stack without the interpreter's lock, and a program that runs meanwhile may crash."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def rest(self) -> None:
        """Nothing is expected any more."""
        if self._timer is not None:
            self._timer.cancel()

    def start(self) -> None:
        """A word was said just now."""
        self.rest()
        self._timer = threading.Timer(SILENCE, self._tell)
        self._timer.daemon = True
        self._timer.start()

    @staticmethod
    def _tell() -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        print(f"silent for {SILENCE:g} s, most recent call last:", file=sys.stderr)
        traceback.print_stack(frame, file=sys.stderr)
        sys.stderr.flush()


_WATCH = Watch()


def say(text: str) -> None:
    """Progress, on stderr, with the seconds since the start; if nothing follows for a while, the stack does,
    so that a run that is stopped from outside has told where it stood."""
    print(f"[{time.perf_counter() - _BEGAN:5.0f} s] {text}", file=sys.stderr, flush=True)
    _WATCH.start()
