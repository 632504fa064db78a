"""Cards: figures of a draft beside its weights, and which packaged draft belongs to a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eagle3_cases import target_shape

from engine.errors import UserError
from speculative.eagle3.card import DRAFTS, card_beside, shipped_draft
from speculative.eagle3.source import expected_acceptance

TARGET = {"name": "Toy-12", "hidden_size": 64, "num_layers": 12, "vocab_size": 96}
CARD: dict[str, Any] = {
    "target": TARGET,
    "accept_length": {"alpaca": 2.7, "gsm8k": 3},
    "acceptance_per_position": {"alpaca": [0.7, 0.5, 0.3]},
    "hardware": "for readers",
}


def write(folder: Path, content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "card.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_figures(tmp_path: Path) -> None:
    card = card_beside(write(tmp_path, CARD))
    assert card is not None
    assert card.target.name == "Toy-12"
    assert card.accept_length == {"alpaca": 2.7, "gsm8k": 3.0}
    assert card.per_position == {"alpaca": (0.7, 0.5, 0.3)}
    assert card.expected == (0.7, 0.5, 0.3)


@pytest.mark.parametrize("weakest", ["alpaca", "gsm8k"])
def test_the_weakest_set_is_what_is_expected(weakest: str, tmp_path: Path) -> None:
    rates = {"alpaca": [0.7, 0.5], "gsm8k": [0.8, 0.6]}
    lengths = {"alpaca": 2.7, "gsm8k": 3.0, weakest: 1.9}
    place = write(tmp_path, {**CARD, "accept_length": lengths, "acceptance_per_position": rates})
    assert expected_acceptance(place) == tuple(rates[weakest])


@pytest.mark.parametrize(
    ("length", "more", "rates"),
    [
        (2.5, {"chain_drafts": 2}, (0.8229, 0.6771)),
        (1.0, {"chain_drafts": 2}, (0.0, 0.0)),
        (9.0, {"chain_drafts": 2}, (1.0, 1.0)),
        (1.9375, {}, (0.5, 0.25, 0.125, 0.0625)),
    ],
)
def test_a_length_alone_is_spread_over_the_chain(
    length: float, more: dict[str, int], rates: tuple[float, ...], tmp_path: Path
) -> None:
    """A card without rates sets off the alarm too."""
    place = write(tmp_path, {"accept_length": {"chat": length, "code": length + 1}, **more})
    assert expected_acceptance(place) == pytest.approx(rates, abs=1e-4)


def test_the_card_in_the_box_is_what_its_alarm_expects() -> None:
    """Its weakest set, and as many tokens a step as its page says: 2.56."""
    (place,) = (file.parent for file in DRAFTS.glob("*/card.json"))
    expected = expected_acceptance(place)
    assert expected is not None
    card = json.loads((place / "card.json").read_text())
    assert list(expected) == card["acceptance_per_position"]["summarise"]
    assert 1 + sum(expected) == pytest.approx(min(card["accept_length"].values()), abs=0.02)
    for name, length in card["accept_length"].items():
        shares = card["acceptance_per_position"][name]
        assert 1 + sum(shares) == pytest.approx(length, abs=0.05)
        assert f"| {name} | {length:.3f} |" in (place / "README.md").read_text()


def test_beside_a_file(tmp_path: Path) -> None:
    (write(tmp_path, CARD) / "model.safetensors").touch()
    assert card_beside(str(tmp_path / "model.safetensors")) == card_beside(tmp_path)


def test_no_card(tmp_path: Path) -> None:
    assert card_beside(tmp_path) is None


def test_the_lengths_are_enough(tmp_path: Path) -> None:
    card = card_beside(write(tmp_path, {"accept_length": {"chat": 2.5}}))
    assert card is not None
    assert (card.accept_length, card.target.name, card.per_position) == ({"chat": 2.5}, "unknown", {})


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "no JSON object"),
        ({}, "accept_length is None"),
        ({"accept_length": {}}, "at least one data set"),
        ({"accept_length": 2.5}, "accept_length is 2.5"),
        ({"accept_length": {"alpaca": "2.5"}}, "accept_length of alpaca is '2.5'"),
        ({"accept_length": {"alpaca": 0.4}}, "alpaca is 0.4, it has to be a number from 1 on"),
        ({"accept_length": {"alpaca": True}}, "alpaca is True"),
        ({**CARD, "acceptance_per_position": {"alpaca": [0.7, 1.4]}}, "alpaca is 1.4.*from 0 to 1"),
        ({**CARD, "acceptance_per_position": {"alpaca": 0.7}}, "list of rates"),
        ({**CARD, "acceptance_per_position": [0.7]}, "acceptance_per_position is"),
        ({**CARD, "chain_drafts": 0}, "chain_drafts is 0, it has to be a number from 1 on"),
        ({**CARD, "target": "Toy"}, "target is 'Toy'"),
        ({**CARD, "target": {"hidden_size": 64}}, "an object with a name"),
        ({**CARD, "target": {**TARGET, "num_layers": "12"}}, "num_layers='12'"),
    ],
)
def test_malformed(content: object, match: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=match) as caught:
        card_beside(write(tmp_path, content))
    assert "card.json" in str(caught.value)


def test_shipped_drafts_are_found_by_the_targets_shape(tmp_path: Path) -> None:
    write(tmp_path / "another", {**CARD, "target": {**TARGET, "num_layers": 16}})
    ours = write(tmp_path / "toy-12", CARD)
    (tmp_path / "no-card").mkdir()
    assert shipped_draft(target_shape(), tmp_path) == ours
    assert shipped_draft(target_shape(num_layers=16), tmp_path) == tmp_path / "another"
    assert shipped_draft(target_shape(vocab_size=97), tmp_path) is None
    assert shipped_draft(target_shape(), tmp_path / "nowhere") is None


def test_a_card_without_sizes_matches_nothing(tmp_path: Path) -> None:
    write(tmp_path / "toy", {**CARD, "target": {"name": "Toy-12"}})
    assert shipped_draft(target_shape(), tmp_path) is None


def test_the_package_ships_none_for_a_toy() -> None:
    assert DRAFTS.parent.name == "eagle3"
    assert shipped_draft(target_shape()) is None
