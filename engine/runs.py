"""The run folder: the snapshot a run can be repeated from, its provenance, its result and its outputs.

Importable without torch. Knows nothing of what a task computes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import yaml

from engine.code_state import DIFF_LIMIT, PACKAGE_ROOT, code_diff, code_files
from engine.errors import UserError
from engine.provenance import config_hash, packages, provenance

RESULT, RUN, OUTPUTS, WORKLOAD = "result.json", "run.json", "outputs.jsonl", "workload.jsonl"
QUESTIONS = "questions.jsonl"  # of a test of accuracy, as rows of its data set
CODE, DIFF, INSTALLED = "code.json", "code.diff", "packages.txt"
SNAPSHOT = ".hydra"
MAX_SUFFIX = 1000


@dataclass(frozen=True)
class RunFolder:
    """A folder that one run owns. Every JSON file in it is written whole or not at all."""

    path: Path

    def write_result(self, result: Mapping[str, Any]) -> None:
        """result.json, finite numbers only."""
        write_json(self.path / RESULT, result)

    def record(self, **facts: Any) -> None:
        """Add facts to run.json that are known only once the engine is built (device, seed, model files)."""
        path = self.path / RUN
        write_json(path, {**json.loads(path.read_text(encoding="utf-8")), **facts})

    def open_lines(self, name: str = OUTPUTS) -> TextIO:
        """A line-buffered text file: what is written survives an interruption."""
        return open(self.path / name, "w", encoding="utf-8", buffering=1)

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """A JSONL file in one go."""
        with self.open_lines(name) as out:
            for row in rows:
                out.write(json_line(row))


def create_run(
    directory: str | os.PathLike[str],
    config: Mapping[str, Any],
    overrides: Sequence[str],
    hydra: Mapping[str, Any] | None = None,
    *,
    exclusive: bool = True,
) -> RunFolder:
    """Make `directory` and write `.hydra/` and run.json into it.

    exclusive: the folder must be new; where it exists, `-1`, `-2`, ... is appended, so that runs which start
    in the same microsecond never share one. False: the caller has made it. config: plain and resolved.
    """
    if not str(directory).strip():
        raise UserError("hydra.run.dir is empty: give a folder, or leave it out")
    wanted = Path(directory).absolute()
    try:
        path = claim_folder(wanted) if exclusive else wanted
        path.mkdir(parents=True, exist_ok=True)
        _write_snapshot(path, config, overrides, hydra)
        facts = provenance(config, overrides)
        write_json(path / RUN, facts)
        _write_code(path, dirty=bool((facts["git"] or {}).get("dirty")))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"cannot write the run folder {wanted}: {reason}. Choose another with hydra.run.dir=FOLDER"
        ) from error
    return RunFolder(path)


def read_run(directory: str | os.PathLike[str]) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """(resolved config, overrides, run.json) of a run folder; a UserError names what is missing."""
    path = Path(directory)
    try:
        config = yaml.safe_load((path / SNAPSHOT / "config.yaml").read_text(encoding="utf-8"))
        overrides = yaml.safe_load((path / SNAPSHOT / "overrides.yaml").read_text(encoding="utf-8"))
        facts = json.loads((path / RUN).read_text(encoding="utf-8"))
    except Exception as error:  # yaml, json and file errors have no common base
        raise UserError(f"{path} is not a readable run folder: {_first_line(error)}") from error
    if not isinstance(config, dict) or not isinstance(overrides, list) or not isinstance(facts, dict):
        raise UserError(f"{path} is not a readable run folder: its snapshot has the wrong form")
    if facts.get("config_hash") != config_hash(config):
        raise UserError(f"{path}: .hydra/config.yaml was changed after the run (its hash is not run.json's)")
    return {str(k): v for k, v in config.items()}, [str(o) for o in overrides], facts


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file of a run folder; a torn last line (an interrupted run) is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n"):  # a text may hold U+2028 and its like
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write whole or not at all: a reader never sees half a file."""
    text = _json(document, indent=2)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, path)


def json_line(row: Mapping[str, Any]) -> str:
    """One line of JSONL."""
    return _json(row) + "\n"


def _json(document: Mapping[str, Any], indent: int | None = None) -> str:
    """Readable letters; escapes where a text is no valid Unicode, which a file could not hold otherwise."""
    text = json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=False)
    return text if is_unicode(text) else json.dumps(document, indent=indent, allow_nan=False)


def is_unicode(text: str) -> bool:
    """False for text with lone surrogates: what bytes that are not UTF-8 become on standard input."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def claim_folder(wanted: Path) -> Path:
    """Make `wanted`, or where it exists `wanted-1`, `wanted-2`, ...; the folder that was made. OSError.

    mkdir is atomic: of several processes exactly one gets a name, the others take the next suffix.
    """
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in range(MAX_SUFFIX):
        path = wanted if number == 0 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise OSError(f"{MAX_SUFFIX} folders of that name exist")


def _write_snapshot(
    path: Path, config: Mapping[str, Any], overrides: Sequence[str], hydra: Mapping[str, Any] | None
) -> None:
    snapshot = path / SNAPSHOT
    snapshot.mkdir(exist_ok=True)
    parts: dict[str, Any] = {"config": dict(config), "overrides": list(overrides)}
    if hydra is not None:
        parts["hydra"] = dict(hydra)
    for name, value in parts.items():
        (snapshot / f"{name}.yaml").write_text(dump_yaml(value), encoding="utf-8")


def _write_code(path: Path, *, dirty: bool) -> None:
    """What the run's code and packages can be told, and made, again from."""
    write_json(path / CODE, code_files())
    installed = "".join(f"{name}=={version}\n" for name, version in packages().items())
    (path / INSTALLED).write_text(installed, encoding="utf-8")
    change = code_diff(PACKAGE_ROOT).encode("utf-8", "surrogateescape") if dirty else b""
    if 0 < len(change) <= DIFF_LIMIT:
        (path / DIFF).write_bytes(change)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _represent_text(dumper: Any, value: str) -> Any:
    """Quote every text that is not a bare word: `1e3` is text to PyYAML and a number to other readers."""
    style = None if re.fullmatch(r"(?!nan$)[A-Za-z_][\w./-]*", value, re.ASCII | re.IGNORECASE) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper = type("_Dumper", (yaml.SafeDumper,), {})
_Dumper.add_representer(str, _represent_text)  # type: ignore[attr-defined]


def dump_yaml(value: Any) -> str:
    """YAML that reads back as the same plain values."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000))
