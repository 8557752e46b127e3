"""A generation's signed record: it holds, it comes out again one token at a time, and no lie about it does."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from nodewire.nostr.keys import Keys
from nodewire.protocol.job.transcript import GenerationTranscript
from nodewire.verify.generation import check

PROMPT = "the cat sat on the mat while the cat"
PARAMS = {"max_tokens": 70, "temperature": 0.7, "seed": 3}


async def generated(market):
    async with market.customer("chronicler", lookahead=8) as customer:
        pieces = customer.generate(market.decoder["address"], PROMPT, transcribe=True, **PARAMS)
        ids = [i async for piece in pieces for i in piece.ids]
        keys, done = customer.session.keys, customer.last
    said = GenerationTranscript.from_document(orjson.loads(orjson.dumps(done["transcript"])))
    assert list(said.ids) == ids == done["ids"]
    assert sum(part.paid_msat for part in said.jobs) == sum(done["paid_msat"].values()) > 0
    return said, keys


@pytest.fixture(scope="module")
def chronicle(market):
    """The record of a generation with guesses, and its customer's keys."""
    return asyncio.run(generated(market))


def lied(said: GenerationTranscript, keys: Keys, **changes) -> set[str]:
    """The steps at fault when the customer itself signs something else, with the chain that belongs to it."""
    if "jobs" not in changes and (part := {k: v for k, v in changes.items() if k in type(said.jobs[0]).model_fields}):
        changes = {k: v for k, v in changes.items() if k not in part}
        changes["jobs"] = (said.jobs[0].model_copy(update=part),)
    other = said.model_copy(update=changes)
    *_, chain = other.links()
    return {fault.step for fault in check(other.model_copy(update={"chain": chain}).signed(keys)).faults}


async def test_it_holds_and_no_other_does(chronicle):
    said, keys = chronicle
    reading = check(said)
    assert reading.faults == []
    assert reading.missing == 0
    part = said.jobs[0]
    members = {one.provider for one in part.roots}
    assert members <= reading.hardware.keys()
    assert [edge for edge, _ in part.rtts_us] == ["hidden.0", "hidden.1", "hidden.2", "return"]
    assert {step for step, count in reading.held.items() if count} >= {"ad", "root", "receipt", "ticket", "chain"}

    # Who has no key cannot change a letter of it.
    assert {fault.step for fault in check(said.model_copy(update={"ids": (*said.ids[:-1], 1)})).faults} == {
        "signature",
        "chain",
    }
    # Nor can who has: what others have signed says otherwise.
    one = part.roots[0]
    elsewhere = next(other for other in members if other != one.provider)
    assert lied(said, keys, prompt=PROMPT + " ") == {"ticket"}
    assert lied(said, keys, ticket=part.ticket.replace('"seed":3', '"seed":4')) == {"ticket"}
    assert lied(said, keys, roots=(one.model_copy(update={"root": "0" * 64}), *part.roots[1:])) == {"payment"}
    assert lied(said, keys, roots=(one.model_copy(update={"provider": elsewhere}), *part.roots[1:])) >= {"root"}
    assert lied(said, keys, roots=(one, *part.roots)) >= {"root"}
    assert lied(said, keys, paid_msat=part.paid_msat - 1) == {"payment"}
    assert lied(said, keys, receipts=(*part.receipts, part.receipts[0])) == {"payment"}
    assert lied(said, keys, ads=(part.ads[0].replace('"pubkey":"', '"pubkey":"00', 1), *part.ads[1:])) == {"ad"}
    stranger = Keys.generate()
    assert lied(said, stranger, customer=stranger.public) >= {"request"}


async def test_it_comes_out_again_from_the_command_line(market, chronicle, tmp_path):
    said, keys = chronicle
    (file := tmp_path / "transcript.json").write_text(said.to_json())
    config = str(market.config_of("chronicler"))
    found = await asyncio.to_thread(market.command, "audit", str(file), "--config", config, "--replay")
    assert found["ok"]
    assert found["replayed"]
    assert (found["tokens"], found["held"]["token"]) == (70, 70)
    assert [trail["ok"] for trail in found["trails"]] == [True]

    # Roots hide what they commit to, so another token is found by who computes it again.
    other = said.model_copy(update={"ids": (*said.ids[:40], said.ids[40] ^ 1, *said.ids[41:])})
    *_, chain = other.links()
    file.write_text(other.model_copy(update={"chain": chain}).signed(keys).to_json())
    done = await asyncio.to_thread(market.run, "audit", str(file), "--config", config, "--replay", "--json")
    assert done.returncode == 1
    assert [fault["step"] for fault in orjson.loads(done.stdout)["faults"]] == ["token"]
