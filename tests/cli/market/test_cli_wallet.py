"""`nodewire wallet`: what it asks before it pays."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import orjson
import pytest
from typer.testing import CliRunner

from nodewire.cli.market import wallet
from nodewire.customer.api import Customer
from nodewire.customer.payments import debts
from nodewire.customer.payments import zap as zapping
from nodewire.customer.payments.debts import ChunkDebt
from nodewire.errors import BadInput, NotFound
from nodewire.nostr.nips.nip57 import Share
from nodewire.pay.accounts import splits
from nodewire.pay.accounts.debts import Debt, Key, Part, Payment
from nodewire.pay.accounts.splits import ShareOutcome, SplitZap


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


SHARES = (Share("ab" * 32, "", 600), Share("cd" * 32, "", 400))


@pytest.fixture
def zapped(monkeypatch, settled):
    """What is zapped, where the second of two shares cannot be paid."""
    asked = []

    async def of_event(pool, text, amount_msat, relays, *, comment, name):
        return SplitZap(name or "5a" * 32, SHARES, relays, text, None, comment)

    async def pay(payer, zap, where, *, network, allow_private):
        asked.append(zap)
        payment = Payment("00" * 32, "lnbcrt", 600, "paid", fee_msat=2)
        paid = Debt(Key(zap.name, SHARES[0].pubkey, 0), 600, (Part(payment, 600),))
        return [
            ShareOutcome(SHARES[0], paid, None),
            ShareOutcome(SHARES[1], None, NotFound("lud16", "nobody \x1b[2J says where")),
        ]

    monkeypatch.setattr(zapping, "of_event", of_event)
    monkeypatch.setattr(splits, "pay", pay)
    return asked


def test_a_zap_that_is_paid_in_part_says_whom_it_lacks_and_how_to_go_on(zapped):
    done = CliRunner().invoke(wallet.app, ["zap", "nevent1abc", "1sat", "--config", "role.toml", "--comment", "hi"])
    assert done.exit_code == 1
    assert "paid 0.600 sat to abababab (fees 0.002 sat)" in done.output
    assert "not paid: 0.400 sat to cdcdcdcd: lud16: nobody" in done.output and "\x1b" not in done.output
    assert f"nodewire wallet zap nevent1abc 1sat --again {'5a' * 32}" in done.output
    CliRunner().invoke(wallet.app, ["zap", "nevent1abc", "1sat", "--config", "role.toml", "--again", "6b" * 32])
    assert [(one.name, one.comment) for one in zapped] == [("5a" * 32, "hi"), ("6b" * 32, "")]


def test_a_zap_of_a_public_key_is_one_share_of_it(zapped):
    done = CliRunner().invoke(wallet.app, ["zap", "ef" * 32, "1sat", "--config", "role.toml", "--json"])
    assert [(one.shares, one.event) for one in zapped] == [((Share("ef" * 32, "", 1_000),), None)]
    assert orjson.loads(done.stdout)["shares"][0] == {
        "to": "ab" * 32,
        "amount_msat": 600,
        "fee_msat": 2,
        "paid": True,
        "error": "",
    }


def test_what_is_no_key_is_refused_before_anything_is_paid(zapped):
    done = CliRunner().invoke(wallet.app, ["zap", "nobody", "1sat", "--config", "role.toml"])
    assert isinstance(done.exception, BadInput) and not zapped
