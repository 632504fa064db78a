"""Where a table of kernel choices comes from: the user's cache, what ships with the package, or a file.

Knows folders and the setting `kernels`; measures nothing: no choice is ever made while an engine runs.
Free of torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UserError
from engine.kernel_choices.table import (
    INTERPRETER,
    ChoiceTable,
    Circumstances,
    as_document,
    from_document,
)
from engine.models.embedded import cache_folder
from engine.runs import write_json

logger = logging.getLogger("syncless")
AUTO, LIBRARY = "auto", "torch"
SHIPPED = Path(__file__).parent / "measured"  # JSON tables that come with the package
TUNE = "python -m benchmarks.tune_kernels"


@dataclass(frozen=True)
class Found:
    """table: without entries, all is computed by separate operations and the library's products. why: one
    clause for people."""

    table: ChoiceTable
    why: str


def find(setting: str, here: Circumstances, shipped: Path = SHIPPED) -> Found:
    """What `kernels=setting` means under these circumstances.

    UserError for a file that cannot be read or is no table. A warning for a file of other versions, which is
    used (it may be a run's that is repeated), for one of another GPU, whose sizes may not even fit, and for a
    damaged cache, both of which are left out.
    """
    if setting == LIBRARY:
        return Found(ChoiceTable(here, {}), f"kernels={LIBRARY}")
    if setting != AUTO:
        return _given(Path(setting).expanduser(), here)
    own, package = _cached(here), _shipped(here, shipped)
    if own is not None and package is not None:
        return Found(own.over(package), f"your table for {here}, over the one that ships")
    if own is not None:
        return Found(own, f"your table for {here}")
    if package is not None:
        return Found(package, f"the table that ships for {package.measured_on}")
    advice = "" if here.gpu == INTERPRETER else f"; `{TUNE}` measures one"
    return Found(ChoiceTable(here, {}), f"no table for {here}{advice}")


def cached_file(here: Circumstances) -> Path:
    """Where the user's own table for these circumstances is kept."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", here.gpu).strip("-").lower()
    digest = hashlib.sha256(str(here).encode()).hexdigest()[:12]
    return cache_folder() / "kernel_choices" / f"{name}-{digest}.json"


def keep(table: ChoiceTable) -> Path:
    """Add a table to the user's cache, newer entries over older. UserError where it cannot be written."""
    place = cached_file(table.measured_on)
    before = _cached(table.measured_on)
    merged = table if before is None else table.over(before)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, as_document(merged))
    except OSError as error:
        raise UserError(f"cannot write {place}: {error.strerror or error}; give --out FILE") from error
    return place


def read(path: Path) -> ChoiceTable:
    """The table in a file; OSError or ValueError where there is none."""
    try:
        return from_document(json.loads(path.read_text(encoding="utf-8")))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def given(path: Path) -> ChoiceTable:
    """The table in a file that `kernels` names; UserError where there is none, or it cannot work."""
    try:
        return read(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"kernels={path} cannot be used: {getattr(error, 'strerror', None) or error}; give a table that "
            f"`{TUNE} --out FILE` wrote, or kernels={AUTO}"
        ) from error


def _given(path: Path, here: Circumstances) -> Found:
    table = given(path)
    then = table.measured_on
    if then.gpu != here.gpu:
        why = f"kernels={path} was measured on {then.gpu}, and this is {here.gpu}"
        logger.warning("%s: it is left out, torch's own products are used", why)
        return Found(ChoiceTable(here, {}), why)
    if then != here:
        logger.warning(
            "kernels=%s was measured with torch %s and triton %s, this is torch %s and triton %s: other "
            "kernels may be faster here",
            path, then.torch, then.triton, here.torch, here.triton,
        )  # fmt: skip
    return Found(table, f"the table in {path}")


def _cached(here: Circumstances) -> ChoiceTable | None:
    place = cached_file(here)
    return _usable(place, here) if place.is_file() else None


def _usable(place: Path, here: Circumstances) -> ChoiceTable | None:
    try:
        table = read(place)
        if table.measured_on != here:
            raise ValueError(f"it was measured on {table.measured_on}")
    except (OSError, ValueError) as error:
        logger.warning("the kernel choices in %s cannot be used (%s); `%s` measures them", place, error, TUNE)
        return None
    return table


def _shipped(here: Circumstances, folder: Path) -> ChoiceTable | None:
    """Of this GPU and these minor versions: what is right for 2.11.0 is right for 2.11.1."""
    fitting = (table for table in _tables(folder) if _minor(table.measured_on) == _minor(here))
    return next(fitting, None)


def _tables(folder: Path) -> Iterator[ChoiceTable]:
    for path in sorted(folder.glob("*.json")):
        yield read(path)


def _minor(where: Circumstances) -> tuple[str, ...]:
    return (where.gpu, *(".".join(version.split(".")[:2]) for version in (where.torch, where.triton)))
