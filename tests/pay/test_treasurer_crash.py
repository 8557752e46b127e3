"""The holder's process dies at any of its writes; asked for the same again, everything ends as if it had not."""

import asyncio
import os
import shutil
from contextlib import suppress

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import NodewireError, NotAllowed
from simnet.journal import Journal
from simnet.service import Simnet
from simnet.treasurer import Rules, Treasurer
from tests.pay.bond_market import COMMITTEE, CUSTOMER, OTHER, PRICE_MSAT, PROVIDER, VERIFIERS

START_S = bm.GENESIS_S + 1
NAMES = ("provider", "other", "customer", "verifier", "oracle")
DIED = 9


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A network with everybody's account and the invoices that will be claimed by, before there is a holder."""
    path = tmp_path_factory.mktemp("base") / "simnet.db"
    simnet = Simnet(path, faucet_msat=1_000_000, now_s=lambda: START_S)
    nodes = {name: simnet.open_account(name, 1_000_000)[0] for name in NAMES}
    bills = {
        name: simnet.make_invoice(nodes[name], amount_msat, 10_000, description_hash=bm.HASH).bolt11
        for name, amount_msat in (("customer", 2 * PRICE_MSAT), ("verifier", PRICE_MSAT), ("oracle", 50))
    }
    simnet.close()
    return path, nodes, bills


def trade(path, nodes, bills):
    """Everything that the holder does, once; the balances in the end."""
    now_s = START_S
    simnet = Simnet(path, now_s=lambda: now_s)
    treasurer = Treasurer(simnet, bm.HOLDER, COMMITTEE, Rules.for_committee(COMMITTEE, statement_s=60))

    async def share(chunk):
        request = bm.zap(chunk)
        invoice = await treasurer.shares.quote(request.to_json(), bm.SHARE_MSAT)
        simnet.pay(nodes["customer"], invoice.bolt11, 0)
        treasurer.book_shares(bm.statement(chunk))

    until_s = START_S + 10_000
    treasurer.lock(nodes["provider"], PROVIDER.public, "lock", 50_000, until_s)
    treasurer.lock(nodes["other"], OTHER.public, "lock", 70_000, until_s)
    treasurer.top_up(nodes["provider"], PROVIDER.public, "more", 10_000, until_s + 5)
    with suppress(NotAllowed):  # the second time, the bond may be slashed
        treasurer.statement(PROVIDER.public)
    for chunk in range(2):
        asyncio.run(share(chunk))
    treasurer.release(nodes["other"], OTHER.public)
    passed = bm.verdict_of(task="stage.0", provider=OTHER.public)
    good = treasurer.present(bm.certificate(passed), bm.REQUEST)
    bad = treasurer.present(bm.certificate(bm.failed()), bm.REQUEST)
    for payee, case, bill in ((VERIFIERS[0], good, "verifier"), (CUSTOMER, bad, "customer")):
        treasurer.claim(payee.public, case.case)
        treasurer.pay_out(payee.public, bills[bill])
    treasurer.pay_out(bm.ORACLES[0].public, bills["oracle"])
    now_s += 1_000
    treasurer.sweep()
    book, state = simnet.book, simnet.state
    assert book.owed_msat() == state.balances[book.node]
    assert sum(state.balances.values()) == state.issued_msat
    balances = {name: state.balances[node] for name, node in nodes.items()}
    simnet.close()
    return balances, {d.bond.provider: d.bond.state for d in book.deposits.values()}, book.treasury.pool_msat


def writes_of(path, nodes, bills):
    count, insert = 0, Journal._insert

    def counting(self, *arguments):
        nonlocal count
        count += 1
        return insert(self, *arguments)

    Journal._insert = counting
    try:
        return trade(path, nodes, bills), count
    finally:
        Journal._insert = insert


def test_a_crash_between_any_two_steps_moves_nothing_twice_and_loses_nothing(base, tmp_path):
    original, nodes, bills = base
    path = tmp_path / "simnet.db"
    shutil.copy(original, path)
    undisturbed, writes = writes_of(path, nodes, bills)
    balances, states, _ = undisturbed
    assert balances["provider"] == 1_000_000 - 60_000
    assert balances["other"] == 1_000_000
    assert states == {PROVIDER.public: "burnt", OTHER.public: "released"}
    assert writes > 20
    for survived in range(writes):  # a write that is lost is the one before it on disk, its answer lost
        for file in tmp_path.iterdir():
            file.unlink()
        shutil.copy(original, path)
        child = os.fork()
        if child == 0:
            _die_at_write(survived, path, nodes, bills)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIED
        assert trade(path, nodes, bills) == undisturbed, survived
        assert trade(path, nodes, bills) == undisturbed


def _die_at_write(survived, *arguments):
    insert, writes = Journal._insert, iter(range(1_000))

    def dying(self, *row):
        if next(writes) != survived:
            return insert(self, *row)
        os._exit(DIED)

    Journal._insert = dying
    with suppress(NodewireError):
        trade(*arguments)
    os._exit(1)
