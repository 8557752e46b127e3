"""`nodewire wallet`: what it asks before it pays."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from nodewire.cli.market import wallet
from nodewire.customer.api import Customer
from nodewire.customer.payments import debts
from nodewire.customer.payments.debts import ChunkDebt
from nodewire.pay.accounts.debts import Key


def owed(number: int, payee: str, amount_msat: int, **changes) -> ChunkDebt:
    return ChunkDebt(Key("ab" * 32, payee * 32, number), amount_msat, "", **changes)


@pytest.fixture
def settled(monkeypatch):
    """What is paid, of a customer that owes 3 sat to two providers, and is asked 9 sat for what broke off."""
    paid = []
    session = SimpleNamespace(
        payer=None, pool=None, keys=SimpleNamespace(public=""), relays=(), network="", private_endpoints=False
    )

    @asynccontextmanager
    async def opened(role, *, is_buyer):
        yield SimpleNamespace(session=session)

    async def on_relays(*about):
        return [owed(2, "cd", 500), owed(3, "ef", 9_000, is_broken=True)]

    async def settle(payer, those, **where):
        paid.extend(those)
        return []

    monkeypatch.setattr(Customer, "open", opened)
    monkeypatch.setattr(debts, "in_ledger", lambda payer: [owed(0, "ab", 2_000), owed(1, "ab", 500)])
    monkeypatch.setattr(debts, "on_relays", on_relays)
    monkeypatch.setattr(debts, "settle", settle)
    monkeypatch.setattr(wallet, "load_customer", lambda path: SimpleNamespace(relays=()))
    return paid


@pytest.mark.parametrize(("answer", "count"), [("n", 0), ("y", 3)])
def test_settling_tells_the_total_before_it_asks(settled, answer, count):
    done = CliRunner().invoke(wallet.app, ["settle", "--config", "role.toml"], input=answer)
    assert done.exception is None
    said, _, _ = done.output.partition("Pay?")
    assert "3.000 sat in all, to 2 providers" in said
    assert len(settled) == count
    assert done.output.count("not agreed to") == 0  # one line says it for all of them
    assert ("nothing was paid" in done.output) == (answer == "n")


def test_what_is_paid_for_a_broken_job_is_in_the_total(settled):
    done = CliRunner().invoke(wallet.app, ["settle", "--config", "role.toml", "--yes", "--broken", "efef"])
    assert "12.000 sat in all, to 3 providers" in done.output
    assert len(settled) == 4
