"""What a customer gets is what one process would have made, and what it pays is what the providers got."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import numpy as np
import pytest

from nodewire.customer.api import CallListener
from nodewire.customer.contacts import FOLLOW_SET
from nodewire.graph import reference as whole_encoder
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44, nip57
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.accounts import zaps
from nodewire.pay.lightning import lnurl
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment, quorum_certificate
from nodewire.protocol.job import feedback, receipt, request, result
from nodewire.protocol.market import ad
from tests.market.market_process import DECODER_MSAT, STALLS

PROMPT = "the cat sat on the mat while nobody saw"
TOKENS = 140
RECORD_EPOCHS = 20
"""After a job, in which a certificate holds all of its roots, also where some epochs are not certified."""
SENTENCES = ["the cat sat on the mat", "a dog ran under the tree", "rain", "the sun sat on a cat under the rain"]


@pytest.fixture(scope="module")
def alone(market):
    """What a single process makes of a prompt."""
    model = LocalDecoder(market.decoder_folder)

    def generate(prompt: str, max_tokens: int, **params) -> tuple[list[int], str]:
        steps = list(model.steps(prompt, parse_params({"max_tokens": max_tokens, **params}, model.positions)))
        return [token for token, _ in steps], "".join(text for _, text in steps)

    return generate


async def generate(customer, market, prompt=PROMPT, **params):
    ids = []
    async for piece in customer.generate(market.decoder["address"], prompt, **params):
        ids += piece.ids
    return ids


async def test_a_generation_over_three_chunks_equals_a_single_process_and_is_paid_to_the_millisat(market, alone):
    before = await market.balances_msat(*STALLS)
    async with market.customer("penny") as penny:
        ids = await generate(penny, market, max_tokens=TOKENS)
        done = penny.last
    assert (ids, done["text"]) == alone(PROMPT, TOKENS)
    assert len(ids) == TOKENS

    after = await market.balances_msat(*STALLS)
    got = {market.public[name]: after[name] - before[name] for name in STALLS}
    assert {p: msat for p, msat in got.items() if msat} == done["paid_msat"]
    left = (await market.balances_msat("penny"))["penny"]
    assert 100_000_000 - left == sum(got.values()) + done["fees_msat"]
    ledger = market.ledger("penny")
    spent = ledger.spent()
    ledger.close()
    assert (spent.paid_msat, spent.fees_msat, spent.pending_msat) == (sum(got.values()), done["fees_msat"], 0)
    assert done["zaps"] >= len(done["providers"])


def check_zaps(statement, zapped, encoded, seen):
    """Each zap names one chunk, and may settle others of the job: together exactly what they cost."""
    settled: dict[str, int] = {}
    for paid in statement.chunks:
        settled[paid.zap_receipt] = settled.get(paid.zap_receipt, 0) + paid.amount_msat
    assert zapped.keys() == settled.keys()
    for id_, event in zapped.items():
        named = zaps.chunk_of(nip57.parse_request(event.tag("description")))
        zap = zaps.check_receipt(
            event, key=named, nostr_pubkey=statement.provider, network="bcrt", lnurl=encoded, seen=seen
        )
        assert (named.job, named.payee) == (statement.request, statement.provider)
        assert zap.invoice.amount_msat == settled[id_]
        assert {p.payment_hash for p in statement.chunks if p.zap_receipt == id_} == {zap.invoice.payment_hash}
        seen.add(zap.invoice.payment_hash)


async def test_every_provider_has_signed_for_every_chunk_and_the_committee_has_certified_its_roots(market):
    async with market.customer("carol") as carol:
        await generate(carol, market, max_tokens=TOKENS)
        done = carol.last
    about = {"e": frozenset({done["request"]})}
    found = await market.events(Filter(kinds=frozenset({9735, kinds.RECEIPT, 6843}), tags=about))
    by_kind = {kind: [e for e in found if e.kind == kind] for kind in {e.kind for e in found}}
    providers = set(done["providers"])

    given = [e for e in by_kind[kinds.RECEIPT] if not receipt.is_closing(e)]
    receipts = {r.provider: r for r in map(receipt.parse, given)}
    assert receipts.keys() == providers
    assert len(given) == len(providers)
    ads = await _ads(market)
    seen: set[str] = set()
    for provider, statement in receipts.items():
        assert len(statement.chunks) >= 3
        zapped = {e.id: e for e in by_kind[9735] if e.pubkey == provider}
        check_zaps(statement, zapped, lnurl.encode(ads[provider].lnurl), seen)
        assert sum(paid.amount_msat for paid in statement.chunks) == done["paid_msat"][provider]

    results = {r.provider: r for r in map(result.parse, by_kind[6843])}
    assert results.keys() == providers
    keys = market.keys("carol")
    said = {p: nip44.decrypt(r.ciphertext, nip44.conversation_key(keys, p)) for p, r in results.items()}
    driver = next(task["provider"] for task in done["tasks"] if task["task"] == "driver")
    assert "text" not in json.loads(said[driver])  # customers derive it from the ids

    claimed = {(p, root) for p, r in results.items() for root in r.roots}
    assert {root.chunk for _, root in claimed} >= set(range(3))
    assert {root.task for _, root in claimed} == {task["task"] for task in done["tasks"]}
    epoch = done["epoch"]
    while True:  # a provider commits once an epoch, and once more if no certificate holds that, as on a busy machine
        epoch = (await market.until(lambda snapshot: True, after=epoch)).body.epoch
        certificates = await market.events(Filter(kinds=frozenset({kinds.CERTIFICATE})))
        certified = [quorum_certificate.parse(e).body for e in certificates if (e.tag("n") or "").startswith("epoch/")]
        bodies = {body.epoch: body for body in certified if body.epoch <= epoch}
        committed = await market.events(Filter(kinds=frozenset({kinds.COMMITMENT})))
        parsed = [await _whole(market, commitment.parse(e)) for e in committed]
        held = [c for c in parsed if c.epoch in bodies]
        roots = {(c.provider, root) for c in held for root in c.chunks}
        if claimed <= roots:
            break
        assert epoch < done["epoch"] + RECORD_EPOCHS
    for number in {c.epoch for c in held if done["request"] in {r.request for r in c.chunks}}:
        ids = [c.id for c in held if c.epoch == number]
        assert bodies[number].commitments == commitment.certified_root(ids)


async def _whole(market, committed):
    """A commitment with its chunks, which are a blob of the store where they are many."""
    if committed.blob is None:
        return committed
    async with aiohttp.ClientSession() as session, session.get(f"{market.blossom}/{committed.blob}") as answer:
        return committed.attach(await answer.read())


async def _ads(market):
    ours = Filter(kinds=frozenset({kinds.AD}), tags={"k": frozenset({str(kinds.INFERENCE)})})
    return {e.pubkey: ad.parse(e) for e in await market.events(ours)}


async def test_embeddings_equal_a_single_process(market):
    async with market.customer("alice") as alice:
        vectors = await alice.embed(market.encoder["address"], SENTENCES)
        assert len(alice.last["providers"]) >= 2
        assert alice.last["paid_msat"].keys() == set(alice.last["providers"])
    expected = whole_encoder.embed(market.encoder_folder, SENTENCES).numpy()
    assert np.abs(vectors - expected).max() <= 1e-5


async def test_a_local_driver_makes_the_same_tokens_and_keeps_the_prompt_at_home(market, alone):
    async with market.customer("alice") as alice:
        terms = alice.terms.model_copy(update={"driver": "local"})
        ids = await generate(alice, market, max_tokens=TOKENS, terms=terms)
        done = alice.last
    assert (ids, done["text"]) == alone(PROMPT, TOKENS)
    driver = done["tasks"][0]
    assert (driver["task"], driver["provider"], driver["price_msat"]) == ("driver", "local", 0)
    assert all(msat >= 3 * DECODER_MSAT for msat in done["paid_msat"].values())
    assert {r["provider"] for r in done["receipts"]} == set(done["providers"])


@pytest.mark.parametrize("lookahead", [1, 8])
async def test_a_models_ends_may_stay_at_home(market, alone, lookahead):
    async with market.customer("alice") as alice:
        terms = alice.terms.model_copy(update={"driver": "ends", "lookahead": lookahead})
        ids = await generate(alice, market, max_tokens=TOKENS, terms=terms)
        done = alice.last
    assert (ids, done["text"]) == alone(PROMPT, TOKENS)
    at = {task["task"]: task["provider"] for task in done["tasks"]}
    assert {task for task, provider in at.items() if provider == "local"} == {"driver", "stage.0", "stage.2"}
    assert list(done["paid_msat"]) == [at["stage.1"]]
    assert done["paid_msat"][at["stage.1"]] >= 3 * DECODER_MSAT


async def test_a_models_ends_are_bought_from_whom_the_customer_names(market, alone):
    named = (market.public["dan"], market.public["eve"])
    async with market.customer("alice") as alice:
        ids = await generate(alice, market, max_tokens=5, terms=alice.terms.model_copy(update={"ends": named}))
        done = alice.last
    assert ids == alone(PROMPT, 5)[0]
    at = {task["task"]: task["provider"] for task in done["tasks"]}
    assert (at["driver"], at["stage.0"], at["stage.2"]) == (named[0], named[1], named[0])


async def test_a_command_says_for_one_request_who_may_have_the_ends(market, alone):
    named = (market.public["dan"], market.public["eve"])
    author = Keys.generate()
    async with market.pool() as pool:
        people = [["d", "friends"], *(["p", one] for one in named)]
        await pool.publish(events.sign(author, FOLLOW_SET, created_at=int(time.time()), tags=people))
    config = str(await market.customer_config("wendy"))
    ask = ["generate", PROMPT, "--config", config, "--model", market.decoder["address"], "--max-tokens", "5"]
    done = await asyncio.to_thread(market.command, *ask, "--ends", f"{FOLLOW_SET}:{author.npub}:friends")
    assert done["ids"] == alone(PROMPT, 5)[0]
    at = {task["task"]: task["provider"] for task in done["tasks"]}
    assert {at["driver"], at["stage.0"], at["stage.2"]} == set(named)
    refused = await asyncio.to_thread(market.run, *ask, "--trusted", f"{FOLLOW_SET}:{author.npub}:foes")
    assert refused.returncode
    assert b"not-found" in refused.stdout + refused.stderr


async def test_embeddings_with_a_local_tokenizer_are_the_same(market):
    async with market.customer("alice") as alice:
        terms = alice.terms.model_copy(update={"driver": "local"})
        vectors = await alice.embed(market.encoder["address"], SENTENCES, terms=terms)
        assert alice.last["tasks"][0]["provider"] == "local"
    assert np.abs(vectors - whole_encoder.embed(market.encoder_folder, SENTENCES).numpy()).max() <= 1e-5


async def test_two_customers_at_once_get_their_own_tokens(market, alone):
    prompts = {"alice": "the cat", "bob": "on the mat sat"}

    async def buy(name):
        async with market.customer(name) as customer:
            return await generate(customer, market, prompts[name], max_tokens=70, temperature=0.8, seed=3)

    bought = await asyncio.gather(*map(buy, prompts))
    for ids, prompt in zip(bought, prompts.values(), strict=True):
        assert ids == alone(prompt, 70, temperature=0.8, seed=3)[0]


async def test_one_customer_can_buy_the_same_twice_in_the_same_second(market, alone):
    async with market.customer("alice") as alice:
        bought = await asyncio.gather(*(generate(alice, market, max_tokens=5) for _ in range(2)))
    assert bought == [alone(PROMPT, 5)[0]] * 2


async def test_a_prompt_that_begins_as_one_before_is_found_by_who_sent_that_and_costs_less(market, alone):
    first, second = PROMPT * 8, PROMPT * 8 + " and so on"
    tokenizer = LocalDecoder(market.decoder_folder).tokenizer
    units = -(-len(tokenizer.encode(second)) // 64)
    found = len(tokenizer.encode(first)) // 64
    assert found >= 2
    done = []
    async with market.customer("greta") as greta, market.customer("hulda") as hulda:
        for who, prompt in ((greta, first), (greta, second), (hulda, second)):
            assert await generate(who, market, prompt, max_tokens=5) == alone(prompt, 5)[0]
            done.append(who.last)
    assert [one["cached_tokens"] for one in done] == [0, 64 * found, 0]
    assert [one["providers"] for one in done] == [done[0]["providers"]] * 3
    price = {p: sum(t["price_msat"] for t in done[0]["tasks"] if t["provider"] == p) for p in done[0]["providers"]}
    stages = {task["provider"] for task in done[0]["tasks"] if task["task"] != "driver"}
    less = {p: found * (msat - -(-msat // 2)) if p in stages else 0 for p, msat in price.items()}
    assert done[2]["paid_msat"] == {p: (units + 1) * msat for p, msat in price.items()}
    assert done[1]["paid_msat"] == {p: (units + 1) * msat - less[p] for p, msat in price.items()}
    audited = market.command("audit", done[1]["request"], "--config", str(market.config_of("greta")))
    assert (audited["ok"], audited["findings"]) == (True, [])


async def test_a_slot_is_for_many_short_generations_at_once(market, alone):
    """Ada has one, of the whole context."""
    done = []
    async with market.customer("shirley") as shirley:
        newest = await shirley.session.market.epoch(timeout_s=10)
        await market.until(market.is_free("ada"), after=newest.body.epoch)
        started = [
            shirley.generate(market.decoder["address"], PROMPT, max_tokens=5, listener=CallListener(ended=done.append))
            for _ in range(3)
        ]
        ids = [[*(await anext(one)).ids] for one in started]  # all three are under way
        for one, mine in zip(started, ids, strict=True):
            async for piece in one:
                mine += piece.ids
    assert ids == [alone(PROMPT, 5)[0]] * 3
    assert [market.public["ada"] in one["providers"] for one in done] == [True] * 3


async def test_a_full_provider_says_busy_and_the_plan_that_is_drawn_without_it_can_be_audited(market, alone):
    async with market.customer("alice") as alice, market.customer("bob") as bob:
        ada = market.public["ada"]
        newest = await alice.session.market.epoch(timeout_s=10)
        await market.until(market.is_free("ada"), after=newest.body.epoch)
        context = (await alice.session.market.manifest(market.decoder["address"])).context
        holding = alice.generate(market.decoder["address"], PROMPT, max_tokens=context - 64, positions=context)
        await anext(holding)  # ada's only slot is taken, and the newest snapshot does not know
        ids = await generate(bob, market, "the mat", max_tokens=5)
        await holding.aclose()
        done = bob.last
    assert ids == alone("the mat", 5)[0]
    assert ada not in done["providers"]
    events = await market.events(Filter(ids=frozenset({done["request"]})))
    plan = request.parse(events[0]).plan
    refusals = await market.events(Filter(ids=frozenset(plan.busy)))
    assert [(e.pubkey, feedback.parse(e).status) for e in refusals] == [(ada, "busy")]
    assert plan.k == 1
    async with asyncio.timeout(300):  # those who had accepted the refused plan have been told that it is off
        await market.until(market.is_free(*STALLS), after=plan.epoch + 1)
    audited = market.command("audit", done["request"], "--config", str(market.config_of("bob")))
    assert (audited["ok"], audited["findings"]) == (True, [])


async def test_a_bonded_provider_is_announced_with_its_bond(market):
    bea = market.public["bea"]
    epoch = await market.until(lambda s: s.node(bea) is not None and s.node(bea).bond_msat == STALLS["bea"].bond_msat)
    assert epoch
    shown = market.command("bond", "show", "--config", str(market.config_of("bea")))
    assert (shown["state"], shown["remainder_msat"]) == ("locked", STALLS["bea"].bond_msat)
