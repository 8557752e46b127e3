"""Processes die in the middle of a job: typed errors in time, others go on, and no ledger forgets or pays twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from nodewire.errors import LinkLost, OverBudget, PaymentFailed, TimedOut, WorkerFailed
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol import kinds
from processes.slowdown import children
from simnet.wallet import SimWallet
from tests.market.market_process import NODEWIRE, STALLS

PROMPT = "the cat sat on the mat"


def whole_tokens(market, prompt, max_tokens):
    model = LocalDecoder(market.decoder_folder)
    return [t for t, _ in model.steps(prompt, parse_params({"max_tokens": max_tokens}, model.positions))]


async def gone(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        await asyncio.sleep(0.02)


def _wire(snapshot, public: str) -> list[str]:
    """Where the ad that the snapshot goes by says that a node listens."""
    return list(snapshot.ads({public})[public].wire) if snapshot.node(public) else []


async def test_a_killed_provider_ends_its_own_job_only_and_serves_again_when_it_is_back(market):
    eve, bea = market.public["eve"], market.public["bea"]
    async with market.customer("victim") as victim, market.customer("bystander") as bystander:
        without_bea = victim.terms.model_copy(update={"excluded": (bea,)})
        without_eve = bystander.terms.model_copy(update={"excluded": (eve,)})
        held = victim.generate(market.decoder["address"], PROMPT, max_tokens=350, terms=without_bea)
        first = await anext(held)
        going = bystander.generate(market.decoder["address"], PROMPT, max_tokens=100, terms=without_eve)
        others = list((await anext(going)).ids)

        process = market.processes["eve"]
        (worker,) = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        with pytest.raises((LinkLost, TimedOut, WorkerFailed)):
            async for _ in held:
                pass
        assert time.monotonic() - killed_at < STALLS["bea"].patience_s / 2
        async for piece in going:
            others += piece.ids
        assert others == whole_tokens(market, PROMPT, 100)
        assert first.ids == (others[0],)
        await asyncio.wait_for(gone(worker), 20)  # no orphan keeps its memory

        ledger = market.ledger("eve")
        earned_msat = ledger.earned_msat()
        ledger.close()
        process.wait()
        assert process.stdout
        process.stdout.close()
        ready = await asyncio.to_thread(market.start_provider, "eve")
        assert ready["public"] == eve
        back = await market.until(
            lambda snapshot: _wire(snapshot, eve) == ready["wire"] and market.is_free("eve")(snapshot)
        )
        async with market.customer("newcomer") as newcomer:
            await newcomer.session.market.epoch(timeout_s=30, after=back.body.epoch - 1)
            ids: list[int] = []
            async for piece in newcomer.generate(market.decoder["address"], PROMPT, max_tokens=70, terms=without_bea):
                ids += piece.ids
            assert ids == whole_tokens(market, PROMPT, 70)
            assert eve in newcomer.last["providers"]
            paid_msat = newcomer.last["paid_msat"][eve]
        await market.settled("newcomer")
        ledger = market.ledger("eve")
        # What was paid while it was down is found in its wallet and booked.
        assert ledger.earned_msat() >= earned_msat + paid_msat
        assert await market.came_in_msat("eve") == ledger.earned_msat()
        async with asyncio.timeout(200):
            while ledger.unreceipted() or ledger.receipts.relays():
                await asyncio.sleep(0.02)
        ledger.close()


async def test_a_customer_killed_between_chunks_pays_nothing_twice(market):
    config = await market.customer_config("mortal")
    command = ["generate", PROMPT, "--config", str(config), "--model", market.decoder["address"], "--max-tokens", "350"]
    process = await asyncio.create_subprocess_exec(
        *NODEWIRE, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout
    assert await asyncio.wait_for(process.stdout.read(1), 60)
    ledger = market.ledger("mortal")
    while not ledger.spent().paid_msat:
        assert await asyncio.wait_for(process.stdout.read(64), 60)
    process.kill()
    await process.wait()

    before = ledger.unpaid()
    requests = Filter(kinds=frozenset({kinds.INFERENCE}), authors=frozenset({market.keys("mortal").public}))
    async with market.customer("mortal") as mortal:  # recovers what the killed run was about to pay
        assert {debt.state for debt in ledger.unpaid()} <= {"planned", "invoiced", "failed"}
        ids: list[int] = []
        async for piece in mortal.generate(market.decoder["address"], PROMPT, max_tokens=70):
            ids += piece.ids
    assert ids == whole_tokens(market, PROMPT, 70)
    assert len(ledger.unpaid()) <= len(before)
    spent = ledger.spent()
    ledger.close()
    jobs = [event.id for event in await market.events(requests)]
    assert len(jobs) >= 2  # a provider may be busy yet: then the purchase is asked for again
    assert (await market.balances_msat("mortal"))["mortal"] == 100_000_000 - spent.paid_msat - spent.fees_msat
    await market.settled("mortal")
    public, job_msat = market.keys("mortal").public, 0
    for name in STALLS:
        theirs = market.ledger(name)
        assert theirs.balance_msat(public) == 0
        job_msat += sum(theirs.earned_msat(job=job) for job in jobs)
        theirs.close()
    assert job_msat == spent.paid_msat


async def test_a_customer_that_breaks_off_pays_what_came_and_is_served_again(market):
    async with market.customer("fickle") as fickle:
        ids: list[int] = []
        going = fickle.generate(market.decoder["address"], PROMPT, max_tokens=350)
        async for piece in going:
            ids += piece.ids
            if len(ids) == 66:  # the chunk of tokens 2 to 65 has just been completed and is being claimed
                break
        await going.aclose()
        again = [
            i async for piece in fickle.generate(market.decoder["address"], PROMPT, max_tokens=5) for i in piece.ids
        ]
    assert again == whole_tokens(market, PROMPT, 5)
    await market.settled("fickle")
    public = market.keys("fickle").public
    for name in STALLS:
        ledger = market.ledger(name)
        assert not ledger.in_debt(public, time.time() + 3_600)
        ledger.close()


async def test_a_budget_ends_a_job_before_the_chunk_that_it_cannot_pay(market):
    """One prompt chunk and one of 64 tokens are paid; nobody computes, or is owed, a third."""
    async with market.customer("thrifty") as thrifty:
        whole = thrifty.terms
        ids: list[int] = []
        async for piece in thrifty.generate(market.decoder["address"], PROMPT, max_tokens=5):
            ids += piece.ids
        chunk_msat = sum(task["price_msat"] for task in thrifty.last["tasks"])
        tight = whole.model_copy(update={"max_total_msat": 2 * chunk_msat + chunk_msat // 2})
        ids.clear()
        with pytest.raises(OverBudget, match="used up"):
            async for piece in thrifty.generate(market.decoder["address"], PROMPT, max_tokens=350, terms=tight):
                ids += piece.ids
        assert ids == whole_tokens(market, PROMPT, 350)[: len(ids)]
        assert len(ids) == 65
        with pytest.raises(OverBudget, match="one chunk costs"):
            no_chunk = whole.model_copy(update={"max_total_msat": chunk_msat - 1})
            await anext(thrifty.generate(market.decoder["address"], PROMPT, terms=no_chunk))
        spent = thrifty.session.payer.unpaid()
        assert spent == []
        again = [
            i async for piece in thrifty.generate(market.decoder["address"], PROMPT, max_tokens=5) for i in piece.ids
        ]
        assert again == whole_tokens(market, PROMPT, 5)
    await market.settled("thrifty")
    public = market.keys("thrifty").public
    for name in STALLS:
        ledger = market.ledger(name)
        assert not ledger.in_debt(public, time.time() + 3_600)
        ledger.close()


async def test_a_debt_that_only_the_provider_remembers_is_found_and_settled(market):
    """The customer's wallet runs dry, and it loses its ledger; the claims are still on the relay."""
    config = await market.customer_config("amnesiac", sats=30)  # two chunks, and the third is one provider's
    async with market.customer("amnesiac") as amnesiac:
        with pytest.raises(PaymentFailed):
            async for _ in amnesiac.generate(market.decoder["address"], PROMPT, max_tokens=350):
                pass
    public, ledger = market.keys("amnesiac").public, market.ledger("amnesiac")
    owed = {(debt.key.payee, debt.key.chunk) for debt in ledger.unpaid()}
    assert ledger.spent().paid_msat and owed
    ledger.close()
    for file in (config.parent / "state").glob("ledger.db*"):
        file.unlink()
    wallet, token = await SimWallet.open_account(market.simnet, "amnesiac", 1_000_000)
    (config.parent / "wallet.token").write_text(token)
    first = market.command("wallet", "settle", "--config", str(config))
    assert {(debt["provider"], debt["chunk"]) for debt in first["debts"]} >= owed
    assert await wallet.balance_msat() == 1_000_000  # asked nothing, paid nothing
    market.command("wallet", "settle", "--config", str(config), "--yes")
    assert await wallet.balance_msat() < 1_000_000
    await wallet.close()
    await market.settled("amnesiac")
    # What was paid before has its payee's receipt, or is refused by it: the money does not move twice.
    for name in STALLS:
        theirs = market.ledger(name)
        assert theirs.balance_msat(public) == 0
        assert not theirs.in_debt(public, time.time() + 3_600)
        theirs.close()


async def test_what_a_wallet_that_ran_dry_left_unpaid_is_paid_beside_the_next_purchase(market):
    """And what is said to be spent, then and before, is what left the wallet."""
    config = await market.customer_config("broke", sats=30)  # two chunks, and the third is one provider's
    async with market.customer("broke") as broke:
        with pytest.raises(PaymentFailed):
            async for _ in broke.generate(market.decoder["address"], PROMPT, max_tokens=350):
                pass
        public = broke.session.keys.public
    debts = Ledger(config.parent / "state" / "ledger.db")  # read when nothing is on its way any more
    owed_msat = sum(debt.amount_msat for debt in debts.unpaid())
    debts.close()
    assert owed_msat
    # The same wallet is filled up: no other one knows what became of a payment that broke off with the job.
    wallet = SimWallet.from_file(market.simnet, config.parent / "wallet.token")
    friend, _ = await SimWallet.open_account(market.simnet, "friend", 2_000_000)
    gift = await wallet.invoice(1_000_000, description="a gift", expiry_s=600)
    assert (await friend.pay(gift.bolt11, max_fee_msat=100_000)).state == "settled"
    await friend.close()
    held_msat = await wallet.balance_msat()
    async with market.customer("broke") as broke:
        await broke.embed(market.encoder["address"], ["a cat"])
        done = broke.last
        assert broke.session.payer.unpaid() == []
    assert done["earlier"]["paid_msat"] >= owed_msat
    left_msat = await wallet.balance_msat()
    await wallet.close()
    earlier = done["earlier"]
    assert held_msat - left_msat == done["spent_msat"] + earlier["paid_msat"] + earlier["fees_msat"]
    for name in STALLS:
        theirs = market.ledger(name)
        assert theirs.balance_msat(public) == 0
        theirs.close()
