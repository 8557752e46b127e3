"""Chunks of sampled jobs are drawn, computed again, and judged by the committee."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback, receipt
from nodewire.protocol.market.snapshot import Snapshot
from nodewire.protocol.model.edge_codec import can_narrow
from nodewire.protocol.verification import verdict
from tests.market.failure.test_market_failures import whole_tokens
from tests.market.market_process import STALLS

PROMPT = "the cat sat on the mat"


@pytest.fixture
async def fay(market):
    """A bonded provider that the committee can draw to verify; her public key."""
    public = (await asyncio.to_thread(market.start_provider, "fay"))["public"]
    await market.until(lambda s: (node := s.node(public)) is not None and node.bond_msat > 0)
    yield public
    await asyncio.to_thread(market.stop_one, "fay")
    await market.until(lambda s: s.node(public) is None)


async def honest_job(market, fay):
    """What a sampled job ended with, and the certificates about it: each passed, by the work of a node outside the job
    or without."""
    now = await market.until(lambda s: True)
    async with market.customer("careful") as customer:
        await customer.session.market.epoch(timeout_s=30, after=now.body.epoch - 1)
        terms = customer.terms.model_copy(update={"verify": "sampled"})
        ids: list[int] = []
        async for piece in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, terms=terms, wait=True):
            ids += piece.ids
        done = customer.last
    assert len(ids) == 3
    assert done["repaired"] == []
    assert {(one["task"], one["chunk"]) for one in done["verdicts"]} == {
        (task["task"], chunk) for task in done["tasks"] for chunk in (0, 1)
    }
    assert {one["outcome"] for one in done["verdicts"]} == {"pass"}
    assert done["share_msat"] > 0
    about = Filter(kinds=frozenset({kinds.CERTIFICATE}), tags={"e": frozenset({done["request"]})})
    certified = [verdict.parse(event) for event in await market.events(about)]
    assert {one.verdict.outcome for one in certified} == {"pass"}
    outside = {fay, *market.public.values()} - {task["provider"] for task in done["tasks"]}
    assert all(agrees and one in outside for found in certified for one, agrees in found.verdict.verifiers)
    return done, certified


async def test_honest_work_passes_and_the_customer_learns_it(market, fay):
    # fay, who has a bond and no part in the job, computes it, too, without seeing what it is compared with. A job whose
    # verifier comes too late is judged without one.
    for _ in range(3):
        done, certified = await honest_job(market, fay)
        if any(one.verdict.verifiers for one in certified):
            break
    else:
        raise AssertionError("fay was in time for none of three jobs")
    assert done["uncertified"] == []
    audited = market.command("audit", done["request"], "--config", str(market.config_of("careful")))
    for step in ("commitment", "certificate", "draw", "verdict", "bond", "payment", "receipt", "ledger"):
        assert {line["state"] for line in audited["lines"] if line["step"] == step} == {"ok"}, step


async def narrowed(customer, address, codec="int8"):
    """Terms that have every edge between tasks narrowed."""
    manifest = await customer.session.market.manifest(address)
    codecs = {edge.name: codec for edge in manifest.edges if can_narrow(edge, codec)}
    return customer.terms.model_copy(update={"verify": "sampled", "codecs": codecs})


@pytest.mark.parametrize("wish", ["edge by edge", "bf16", "auto"])
async def test_honest_work_over_narrowed_edges_passes_and_its_receipts_say_that_they_were(market, wish):
    """bea has two stages: by a wish for the whole job the edge between them is not narrowed. For three tokens of 32
    numbers, on one machine, `auto` narrows nothing."""
    async with market.customer("careful") as customer:
        terms = customer.terms.model_copy(update={"verify": "sampled"})
        options = {"terms": terms, "edge_codec": wish}
        if wish == "edge by edge":
            options = {"terms": await narrowed(customer, market.decoder["address"], "int8")}
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, wait=True, **options):
            pass
        done = customer.last
    assert [task["provider"] for task in done["tasks"]].count(market.public["bea"]) == 2
    expected = {
        "edge by edge": dict.fromkeys(("hidden.0", "hidden.1", "hidden.2", "return"), "int8"),
        "bf16": dict.fromkeys(("hidden.0", "hidden.2", "return"), "bf16"),
        "auto": {},
    }
    assert done["codecs"] == expected[wish]
    assert {(one["task"], one["chunk"]) for one in done["verdicts"]} == {
        (task["task"], chunk) for task in done["tasks"] for chunk in (0, 1)
    }
    assert {one["outcome"] for one in done["verdicts"]} == {"pass"}
    about = Filter(kinds=frozenset({kinds.RECEIPT}), tags={"e": frozenset({done["request"]})})
    receipts = [receipt.parse(event) for event in await market.events(about) if not receipt.is_closing(event)]
    assert {one.provider for one in receipts} == set(done["providers"])
    assert {one.codecs for one in receipts} == {tuple(sorted(set(expected[wish].values())))}
    audited = await asyncio.to_thread(
        market.command, "audit", done["request"], "--config", str(market.config_of("careful"))
    )
    assert {line["state"] for line in audited["lines"] if line["step"] in ("verdict", "receipt")} == {"ok"}


async def test_verdicts_are_settled_though_the_customer_has_long_left(market):
    async with market.customer("hasty") as customer:
        terms = customer.terms.model_copy(update={"verify": "sampled"})
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, terms=terms):
            pass
        done = customer.last
    command = ("audit", done["request"], "--config", str(market.config_of("hasty")))
    for _ in range(20):
        await market.until(lambda s: True, after=(await market.until(lambda s: True)).body.epoch)
        lines = (await asyncio.to_thread(market.command, *command))["lines"]
        verdicts, settled = ([one["state"] for one in lines if one["step"] == step] for step in ("verdict", "bond"))
        if set(verdicts) == {"ok"} and len(verdicts) == 2 * len(done["tasks"]) and set(settled) == {"ok"}:
            break
    assert (set(verdicts), set(settled)) == ({"ok"}, {"ok"})
    assert {one["state"] for one in lines if one["step"] == "receipt"} == {"missing"}  # it left before its time
    async with market.customer("hasty") as customer:
        await customer.session.closings.finish(done["request"])
    lines = (await asyncio.to_thread(market.command, *command))["lines"]
    assert {one["state"] for one in lines if one["step"] == "receipt"} == {"ok"}


async def test_calls_of_a_stateless_model_are_judged_too(market):
    async with market.customer("careful") as customer:
        terms = customer.terms.model_copy(update={"verify": "sampled"})
        await customer.embed(market.encoder["address"], ["a cat", "a kitten"], terms=terms, wait=True)
        done = customer.last
    assert {(one["task"], one["outcome"]) for one in done["verdicts"]} == {
        (task["task"], "pass") for task in done["tasks"]
    }
    assert (done["repaired"], done["uncertified"], done["refunded_msat"]) == (0, [], 0)
    about = Filter(kinds=frozenset({kinds.CERTIFICATE}), tags={"e": frozenset({done["request"]})})
    said = [verdict.parse(event).verdict for event in await market.events(about)]
    assert {(one.task, one.outcome, one.culprit) for one in said} == {
        (task["task"], "pass", "") for task in done["tasks"]
    }


@pytest.mark.parametrize(("what", "driver"), [("generation", "local"), ("generation", "ends"), ("call", "local")])
async def test_who_works_for_a_customer_that_drives_itself_is_judged_by_the_customers_word(market, what, driver):
    """Commitments and certificates have nothing of the driver's: what it sent is what it signed."""
    async with market.customer("driving") as customer:
        terms = customer.terms.model_copy(update={"verify": "sampled", "driver": driver})
        if what == "call":
            await customer.embed(market.encoder["address"], ["a cat", "a kitten"], terms=terms, wait=True)
        else:
            async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, terms=terms, wait=True):
                pass
        done = customer.last
    bought = {task["task"] for task in done["tasks"] if task["provider"] != "local"}
    assert {(one["task"], one["outcome"]) for one in done["verdicts"]} == {(task, "pass") for task in bought}
    assert len(bought) == len(done["tasks"]) - (3 if driver == "ends" else 1)
    assert (done["uncertified"], done["refunded_msat"]) == ([], 0)


@pytest.mark.parametrize(
    ("name", "cheat", "task", "codec"), [("gil", "scaled", "graph.1", None), ("hal", "wrong", "graph.0", "int8")]
)
async def test_a_call_that_a_cheater_had_a_hand_in_is_made_again(market, name, cheat, task, codec):
    """It is the fastest that this customer trusts. Its output has 5 % of noise, or is random over a narrowed edge."""
    market.spawn_dishonest(name, cheat, task)
    cheater = (await asyncio.to_thread(market.ready, name))["public"]
    texts = ["a cat", "a kitten"]
    try:
        epoch = await market.until(lambda s: (node := s.node(cheater)) is not None and node.bond_msat > 0)
        async with market.customer("calling") as customer:
            await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
            trusted = (*(public for one, public in market.public.items() if one not in ("bea", "cyd")), cheater)
            wish = {"verify": "sampled", "trusted": trusted}
            codecs = (await narrowed(customer, market.encoder["address"], codec)).codecs if codec else {}
            terms = customer.terms.model_copy(update={**wish, "codecs": codecs})
            for _ in range(4):  # its bond may be an epoch too young for the first
                vectors = await customer.embed(market.encoder["address"], texts, terms=terms, wait=True)
                done = customer.last
                if done["repaired"]:
                    break
                assert (task, cheater) not in {(one["task"], one["provider"]) for one in done["tasks"]}
            honest = customer.terms.model_copy(update={"trusted": tuple(market.public.values()), "codecs": codecs})
            same = await customer.embed(market.encoder["address"], texts, terms=honest)
    finally:
        market.stop_one(name)
    guilty = [one for one in done["verdicts"] if one["outcome"] != "pass"]
    assert {(one["task"], one["outcome"], one["culprit"]) for one in guilty} == {(task, "fail", cheater)}
    assert (done["repaired"], len(done["requests"])) == (1, 2)
    assert done["refunded_msat"] > 0
    assert (vectors == same).all()
    await market.until(lambda s: s.node(cheater) is None)


async def test_a_cheater_is_convicted_leaves_and_its_work_is_made_again(market):
    """cyd adds 5 % of noise to what stage.2 puts out."""
    market.stop_one("cyd")
    market.spawn_dishonest("cyd", "scaled", "stage.2")
    market.ready("cyd")
    cyd, dan = market.public["cyd"], market.public["dan"]
    now = await market.until(lambda s: True)
    before: Counter[str] = Counter()

    def begins(snapshot: Snapshot) -> bool:
        before.clear()
        before.update({node.pubkey: node.passed for node in snapshot.nodes})
        return market.is_free(*STALLS)(snapshot)

    epoch = await market.until(begins, after=now.body.epoch + 1)
    async with market.customer("wary") as customer:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        terms = customer.terms.model_copy(update={"verify": "sampled", "trusted": tuple(market.public.values())})
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, terms=terms, wait=True):
            pass
        done = customer.last
    guilty = [one for one in done["verdicts"] if one["provider"] == cyd]
    assert guilty
    assert {(one["outcome"], one["culprit"]) for one in guilty} == {("fail", cyd)}
    assert {one["outcome"] for one in done["verdicts"] if one["provider"] != cyd} == {"pass"}
    assert done["repaired"] == [0]
    assert done["ids"] == whole_tokens(market, PROMPT, 3)
    assert dan in done["providers"]
    await market.until(lambda s: s.node(cyd) is None)
    passed = Counter(one["provider"] for one in done["verdicts"] if one["outcome"] == "pass")
    # What others' work had earned them before may still be counted meanwhile.
    await market.until(
        lambda s: all((node := s.node(p)) and node.passed >= before[p] + n for p, n in passed.items()),
        after=epoch.body.epoch,
    )


async def test_who_is_paid_and_commits_to_nothing_pays_for_it(market):
    """bea does her work, claims it and is paid, and publishes no root."""
    market.stop_one("bea")
    market.spawn_dishonest("bea", "uncommitted", "")
    market.ready("bea")
    bea = market.public["bea"]
    now = await market.until(lambda s: True)
    epoch = await market.until(market.is_free("ada", "bea", "dan", "eve"), after=now.body.epoch + 1)
    try:
        async with market.customer("robbed") as customer:
            await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
            terms = customer.terms.model_copy(update={"verify": "sampled", "trusted": tuple(market.public.values())})
            async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, terms=terms):
                pass
            done = customer.last
            about = Filter(
                kinds=frozenset({kinds.CERTIFICATE, kinds.FEEDBACK}), tags={"e": frozenset({done["request"]})}
            )
            claims = [
                feedback.parse(e) for e in await market.events(about) if e.kind == kinds.FEEDBACK and e.pubkey == bea
            ]
            paid_msat = sum(said.due.amount_msat for said in claims if said.due is not None)
            assert paid_msat > 0
            holder = customer.session.holder
            before_msat = (await holder.bond(bea)).remainder_msat
            async with asyncio.timeout(250):  # its bond answers without anybody's doing
                while (await holder.bond(bea)).remainder_msat != before_msat - 4 * paid_msat:
                    await asyncio.sleep(1)
                events = [event for event in await market.events(about) if event.kind == kinds.CERTIFICATE]
                said = {one.key: one for one in (verdict.parse(event).verdict for event in events)}
                while any(
                    [
                        (await holder.case(key)).due.get(customer.session.keys.public)
                        for key, one in said.items()
                        if one.claimed
                    ]
                ):
                    await asyncio.sleep(0.5)  # the customer's process takes what is its own
        assert {one.provider for one in said.values() if one.outcome != "pass"} == {bea}
        assert sum(one.claimed_msat for one in said.values()) == paid_msat
    finally:
        market.stop_one("bea")
        await asyncio.to_thread(market.start_provider, "bea")


async def test_who_sends_one_thing_and_commits_to_another_is_convicted_and_nobody_else(market):
    """bea computes stage.1 honestly and commits to that, but sends dan, and signs, something else. cyd has left."""
    market.stop_one("bea")
    market.spawn_dishonest("bea", "equivocating", "stage.1")
    market.ready("bea")
    bea, eve = market.public["bea"], market.public["eve"]
    now = await market.until(lambda s: True)
    epoch = await market.until(market.is_free(*(set(STALLS) - {"cyd"})), after=now.body.epoch + 1)
    async with market.customer("warier") as customer:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        terms = customer.terms.model_copy(update={"verify": "sampled", "trusted": tuple(market.public.values())})
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, terms=terms, wait=True):
            pass
        done = customer.last
    guilty = [one for one in done["verdicts"] if one["culprit"]]
    assert {(one["outcome"], one["task"], one["culprit"]) for one in guilty} == {("unsure", "stage.2", bea)}
    assert {one["outcome"] for one in done["verdicts"] if not one["culprit"]} == {"pass"}
    assert done["repaired"] == [0]
    assert done["ids"] == whole_tokens(market, PROMPT, 3)
    assert eve in done["providers"]
    await market.until(lambda s: s.node(bea) is None)
