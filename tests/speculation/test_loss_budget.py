"""The budget of a policy of width: what being wrong may cost, and how long it saves up for a dear step."""

from __future__ import annotations

import pytest

from speculative.budget import GRACE, SHARE, LossBudget


def test_the_budget_alone_gives_three_percent_after_the_steps_it_promises() -> None:
    """Drafts whenever they are affordable, and all of them rejected."""
    budget, time = LossBudget(), 0.0
    for step in range(1, 5000):
        budget.plain(1.0, needed=0.8)
        drafts = budget.affords(0.8)
        if drafts:
            budget.charge(0.8)
        time += 1.8 if drafts else 1.0
        assert budget.balance >= 0
        if step >= GRACE / (0.03 - SHARE):
            assert step / time >= 1 / 1.03
    assert 5000 / time >= 0.988, "in the long run the share alone"


def test_a_budget_saves_up_for_a_step_that_costs_more_than_the_grace() -> None:
    budget = LossBudget()
    waited = 0
    while not budget.affords(20.0):
        budget.plain(1.0, needed=20.0)
        waited += 1
    assert waited == pytest.approx((20 - GRACE) / SHARE, abs=2)
