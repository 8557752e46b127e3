"""What went over the relay can be read by everybody, and says nothing of what was bought."""

from __future__ import annotations

import json

from nodewire.nostr.nips.nip01 import Filter

PROMPT = "a very private prompt about the cat on the mat"
SENTENCES = ["the confidential dog sat under the tree", "nobody shall read of this rain"]
STOP = "never said stop"


async def test_no_prompt_completion_parameter_or_sentence_is_on_the_relay(market):
    async with market.customer("private") as customer:
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=40, stop=[STOP]):
            pass
        text, tickets = customer.last["text"], [customer.last["ticket"]]
        await customer.embed(market.encoder["address"], SENTENCES)
        tickets.append(customer.last["ticket"])
    assert len(text) > 20
    events = await market.events(Filter())
    assert {8843, 7000, 6843, 8854, 8856, 9735, 31990, 11998} <= {event.kind for event in events}
    dumps = [event.to_json().encode() for event in events]
    dumps += [path.read_bytes() for path in market.folder.glob("relay.db*")]
    dumps += [path.read_bytes() for path in (market.folder / "blobs").rglob("*") if path.is_file()]
    for secret in (PROMPT, text, text[:12], STOP, '"max_tokens"', *tickets, *SENTENCES, *PROMPT.split("about")):
        needles = {secret.encode(), json.dumps(secret)[1:-1].encode()}
        assert not [needle for needle in needles for dump in dumps if needle in dump]
    assert any(b"payment-required" in dump for dump in dumps)  # it would have been found
