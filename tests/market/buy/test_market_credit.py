"""Chunks are metered, and money moves in lumps: few payments, no more on credit than is given, no msat lost."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.bond.bond_holder import is_share_paid
from nodewire.protocol import kinds
from nodewire.protocol.job.request import parse as parse_request
from nodewire.protocol.job.tab import Tab
from nodewire.protocol.verification import verdict
from simnet.wallet import SimWallet
from tests.market.buy.test_market_dag import BOND_MSAT, Dag
from tests.market.failure.test_market_failures import whole_tokens
from tests.market.market_process import STALLS

pytestmark = pytest.mark.timeout(600)
PROMPT = "the cat sat on the mat while the cat sat on the mat"
FIRST_MSAT, MOST_MSAT = 10_000, 40_000
"""A chunk costs 1,000 msat at each provider."""


@pytest.fixture(scope="module")
def lender(market):
    """Two providers that give credit, and hold a model that nobody else does."""
    where = ["--relay", market.relay, "--blossom", market.blossom, "--key", str(market.folder / "author.nsec")]
    made = market.command("register", str(market.decoder_folder), "--split", "0,1-2", "--name", "on-credit", *where)
    dag = Dag(market, made["address"], made["digest"], {})
    sold = {"uma": ["driver"], "vic": ["stage.0", "stage.1"]}
    for name, tasks in sold.items():
        dag.start(name, tasks, 1_000, BOND_MSAT, credit=(FIRST_MSAT, MOST_MSAT))
    for name in sold:
        dag.public[name] = market.ready(name)["public"]
    asyncio.run(dag.live(*sold))
    yield dag
    for name in dag.public:
        market.stop_one(name)


class WholeSats(SimWallet):
    """A wallet as most are: it takes whole satoshis, and counts what it paid."""

    def __init__(self, *account):
        super().__init__(*account)
        self.paid = []

    async def info(self):
        return dataclasses.replace(await super().info(), unit_msat=1_000, least_msat=1_000)

    async def pay(self, bolt11, **options):
        done = await super().pay(bolt11, **options)
        assert done.amount_msat % 1_000 == 0
        self.paid.append(done.amount_msat)
        return done


async def test_a_talk_is_paid_in_few_lumps_and_both_books_agree_to_the_msat(market, lender):
    await market.customer_config("tess")
    requests: list[str] = []
    async with market.customer("tess") as tess:
        payer = tess.session.payer
        wallet = WholeSats(market.simnet, (market.config_of("tess").parent / "wallet.token").read_text().strip())
        payer._wallet, charged_msat = wallet, dict.fromkeys(lender.public.values(), 0)
        for _ in range(4):
            ids: list[int] = []
            async for piece in tess.generate(lender.address, PROMPT, max_tokens=200):
                ids += piece.ids
            assert ids == whole_tokens(market, PROMPT, 200)
            requests.append(tess.last["request"])
            for public in charged_msat:
                tab = payer.tab(public)
                charged_msat[public] = tab.paid_msat - tab.ahead_msat + tab.owed_msat
                assert tab.owed_msat <= max(FIRST_MSAT, min(MOST_MSAT, tab.paid_msat))
        customer = tess.session.keys.public
        least_chunks = sum(charged_msat.values()) // 2_000  # who has two tasks charges for both
        assert len(wallet.paid) < least_chunks / 2
        await wallet.close()
    for name, public in lender.public.items():
        theirs = Ledger(market.folder / name / "state" / "ledger.db")
        tab = payer_tab(market, public)
        assert theirs.paid_msat(customer) == tab.paid_msat
        assert theirs.owed_msat(customer) - theirs.balance_msat(customer) == tab.owed_msat - tab.ahead_msat
        assert theirs.earned_msat() + theirs.owed_msat(customer) == charged_msat[public]
        signed = [Tab.parse(theirs.signed_tab(job)[1]) for job in requests]  # over the wire, through the driver
        assert 0 < sum(one.total_msat for one in signed) <= charged_msat[public]  # a job may end before its last one
        for one in signed:
            one.check(customer, one.request)
        theirs.close()


def payer_tab(market, public):
    book = Ledger(market.folder / "tess" / "state" / "ledger.db")
    tab = book.tab(public)
    book.close()
    return tab


async def test_the_shares_of_a_sampled_job_are_paid_in_whole_satoshis_before_the_draw_and_verifiers_are_paid(market):
    """Each chunk's share is 1,801 msat. The holder's book and the customer's ledger have the same msat."""
    await market.customer_config("vera")
    await market.until(market.is_free(*STALLS))
    async with market.customer("vera") as vera:
        payer, holder = vera.session.payer, vera.session.holder
        wallet = WholeSats(market.simnet, (market.config_of("vera").parent / "wallet.token").read_text().strip())
        payer._wallet = wallet
        terms = vera.terms.model_copy(update={"verify": "sampled"})
        async for _ in vera.generate(market.decoder["address"], PROMPT, max_tokens=70, terms=terms, wait=True):
            pass
        done, public = vera.last, (await holder.holder()).public
        tab = payer.tab(public)
        shares = [debt for debt in payer.debts_of(done["request"]) if debt.key.payee == public]
        stated_msat = sum(debt.amount_msat for debt in shares)
        assert len(shares) == 3 and stated_msat == done["share_msat"] == tab.paid_msat - tab.ahead_msat
        assert (await wallet.ask("GET", f"/v1/ahead/{vera.session.keys.public}"))["ahead_msat"] == tab.ahead_msat
        came_msat, _ = await holder.treasury(done["request"])
        assert came_msat == stated_msat
        certified = Filter(kinds=frozenset({kinds.CERTIFICATE}), tags={"e": frozenset({done["request"]})})
        said = [verdict.parse(event).verdict for event in await market.events(certified)]
        passed = [one for one in said if one.outcome == "pass"]
        assert passed
        asked = Filter(ids=frozenset({done["request"]}))
        request = parse_request((await market.events(asked))[0])
        for one in passed:
            assert await is_share_paid(
                holder, request, one.chunk, one.epoch, vera.session.market.committee, one.chunk + 1
            )
        async with asyncio.timeout(300):  # its verifiers claim what is theirs by themselves
            while any([any((await holder.case(one.key)).due.values()) for one in passed]):
                await asyncio.sleep(0.2)
        assert (await holder.treasury(done["request"]))[1] < came_msat
        await wallet.close()
