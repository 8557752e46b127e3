"""What the demo tells of its cheater is what the records have, whatever they have."""

from __future__ import annotations

from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "demo"
CHEATER, CUSTOMER = "c" * 64, "d" * 64
ORACLES = {f"{i}" * 64: f"oracle-{i}" for i in range(4)}


@pytest.fixture
def told(monkeypatch):
    """The story of these verdicts, one for a piece of work: (is it the cheater's, outcome)."""
    monkeypatch.syspath_prepend(str(DEMO))
    import dishonest_provider

    def tell(verdicts, *, convicted=(), lost_msat=0, payouts=None, repaired=(), net_msat=15_000):
        cheater = dishonest_provider.Cheater("provider-8", CHEATER, "stage.1", Path("x"))
        done = {
            "first_text": "one [red] text",
            "text": "another text" if repaired else "one [red] text",
            "repaired": list(repaired),
            "verdicts": [
                {"provider": CHEATER if hers else "e" * 64, "outcome": outcome, "culprit": culprit}
                for hers, outcome, *culprits in verdicts
                for culprit in (culprits or [""])
            ],
        }
        outcomes = [outcome or "none" for _, outcome, *_ in verdicts]
        came = {
            "verdicts": {one: outcomes.count(one) for one in outcomes},
            "convicted": list(convicted),
            "votes": [3] if convicted else [],
            "off_percent": 12.0 if convicted else None,
            "received_msat": 15_000,
            "lost_msat": lost_msat,
            "net_msat": net_msat,
            "payouts": payouts or {},
        }
        return list(dishonest_provider.story(cheater, done, came, ORACLES, CUSTOMER, {CHEATER: "provider-8"}))

    return tell


def test_a_catch_is_told_with_all_that_came_of_it(told):
    lines = "\n".join(
        told(
            [(True, "fail"), (False, "pass"), (False, "pass"), (False, "unsure")],
            convicted=["provider-8"],
            lost_msat=2_000_000,
            payouts={CUSTOMER: 30_000},
            repaired=[0],
            net_msat=-1_985_000,
        )
    )
    assert "picked 4 pieces of work: 2 computed again and found right, 1 computed again and found wrong, 1 not" in lines
    assert "1 not judged in time" in lines
    assert "the result that provider-8 had signed for stage.1 is another than the one computed again" in lines
    assert "convicted: provider-8[/], by at least 3 of 4 oracles" in lines
    assert "is slashed: 30.000 sat to the customer, 1,970.000 sat burnt" in lines
    assert "others made it again" in lines and "cheating cost it 1,985.000 sat" in lines


def test_where_nobody_is_convicted_nothing_is_slashed_or_made_again(told):
    lines = "\n".join(told([(True, "unsure"), (False, "pass")]))
    assert "of provider-8's work for stage.1: 1 not judged in time" in lines
    assert "nobody was convicted" in lines
    assert "its bond is untouched: provider-8 lost nothing" in lines
    assert "cheating made it 15.000 sat" in lines
    assert "nothing was made again: no verdict asked for it" in lines
    for word in ("slashed", "another than", "others made", "first read"):
        assert word not in lines


def test_a_cheater_that_was_not_drawn_is_told_as_such(told):
    lines = told([(False, "pass"), (False, "")])
    assert "the lottery picked nothing that provider-8 did" in lines
    assert lines[1].endswith("1 computed again and found right, 1 without a verdict")


def test_a_cheater_that_is_caught_as_it_checks_another_is_told_as_such(told):
    lines = "\n".join(told([(False, "pass", CHEATER)], convicted=["provider-8"], lost_msat=2_000_000))
    told = "provider-8 was drawn to check eeeeeeee's work by computing it again, and signed what nobody else finds"
    assert told in lines
    assert "convicted: provider-8" in lines and "the customer read" in lines


def test_withheld_work_costs_without_a_conviction(told):
    lines = "\n".join(told([(True, "withheld")], lost_msat=84_000, payouts={CUSTOMER: 21_000}, repaired=[0]))
    assert "nobody was convicted" in lines
    assert "its bond was not slashed, and pays: 21.000 sat to the customer, 63.000 sat burnt" in lines
