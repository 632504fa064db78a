"""What a draft's makers measured, and which drafts come with the package. Free of torch.

A card is a card.json beside the weights: {"target": {"name", "hidden_size", "num_layers", "vocab_size"},
"accept_length": {data set: mean emitted tokens a step}, "acceptance_per_position": {data set: [rates]},
"chain_drafts": drafts of the steps that were measured}; all but accept_length may be missing. More keys are
for readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.models.hf_config import read_json
from engine.models.shape import ModelShape

CARD = "card.json"
CHAIN = 4  # drafts of a chain, where a card does not say how many were measured
DRAFTS = Path(__file__).resolve().parent / "drafts"
_SIZES = ("hidden_size", "num_layers", "vocab_size")


@dataclass(frozen=True)
class TargetCard:
    """The target that a draft was trained for; sizes by their names in ModelShape."""

    name: str
    sizes: Mapping[str, int] = field(default_factory=dict)

    def matches(self, shape: ModelShape) -> bool:
        """Whether every size is recorded and is that of `shape`."""
        return all(self.sizes.get(name) == getattr(shape, name) for name in _SIZES)


@dataclass(frozen=True)
class Card:
    """accept_length: mean emitted tokens a step, by data set. per_position: share of steps in which the draft
    at each depth was accepted. chain: drafts of the steps that were measured."""

    target: TargetCard
    accept_length: Mapping[str, float]
    per_position: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    chain: int = CHAIN

    @property
    def expected(self) -> tuple[float, ...]:
        """Share of steps that accept the draft at each depth, on the set with the lowest accept length: well
        below it something is wrong. Where the card has none of that set: as if every draft of the chain were
        accepted alike."""
        weakest = min(self.accept_length, key=lambda name: self.accept_length[name])
        return self.per_position.get(weakest) or _alike(self.accept_length[weakest], self.chain)


def card_beside(path: str | Path) -> Card | None:
    """The card in a draft's folder (or beside a weight file); None when there is none.

    Raises UserError for a card that cannot be read or lacks its figures.
    """
    place = Path(path).expanduser()
    file = (place if place.is_dir() else place.parent) / CARD
    return _parsed(read_json(file), str(file)) if file.is_file() else None


def shipped_draft(target: ModelShape, drafts: Path = DRAFTS) -> Path | None:
    """Folder of the packaged draft whose card names a target of this shape; None when there is none."""
    for file in sorted(drafts.glob(f"*/{CARD}")):
        if _parsed(read_json(file), str(file)).target.matches(target):
            return file.parent
    return None


def _parsed(values: Mapping[str, Any], where: str) -> Card:
    lengths = _by_set(values, "accept_length", where)
    if not lengths:
        raise UserError(f"{where}: accept_length is empty, it has to name at least one data set")
    return Card(
        _target(values.get("target", {"name": "unknown"}), where),
        {name: _number(value, f"{where}: accept_length of {name}", 1.0) for name, value in lengths.items()},
        {
            name: _rates(value, f"{where}: acceptance_per_position of {name}")
            for name, value in _by_set(values, "acceptance_per_position", where, {}).items()
        },
        int(_number(values.get("chain_drafts", CHAIN), f"{where}: chain_drafts", 1)),
    )


def _alike(length: float, drafts: int) -> tuple[float, ...]:
    """Rates r, r^2, ... of a chain whose steps emit 1 + r + r^2 + ... = length tokens, r by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        over = 1 + sum(middle**depth for depth in range(1, drafts + 1)) > length
        low, high = (low, middle) if over else (middle, high)
    return tuple(low**depth for depth in range(1, drafts + 1))


def _by_set(
    values: Mapping[str, Any], key: str, where: str, default: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    found = values.get(key, default)
    if not isinstance(found, Mapping):
        raise UserError(f"{where}: {key} is {found!r}, it has to map data sets to figures")
    return found


def _target(value: object, where: str) -> TargetCard:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise UserError(f"{where}: target is {value!r}, it has to be an object with a name")
    sizes = {name: value[name] for name in _SIZES if name in value}
    wrong = [f"{name}={size!r}" for name, size in sizes.items() if type(size) is not int or size < 1]
    if wrong:
        raise UserError(f"{where}: sizes of the target have to be positive integers, not {', '.join(wrong)}")
    return TargetCard(value["name"], sizes)


def _rates(value: object, what: str) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise UserError(f"{what} is {value!r}, it has to be a list of rates")
    return tuple(_number(rate, what, 0.0, 1.0) for rate in value)


def _number(value: object, what: str, least: float, most: float = float("inf")) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        bounds = f"from {least:g} on" if most == float("inf") else f"from {least:g} to {most:g}"
        raise UserError(f"{what} is {value!r}, it has to be a number {bounds}")
    return float(value)
