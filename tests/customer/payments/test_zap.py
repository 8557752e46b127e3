"""Whom a customer's zap goes to, and where they are paid: read from events that anybody may have written."""

from __future__ import annotations

import json

import pytest

from nodewire.customer.payments import zap
from nodewire.errors import BadInput, BadZap, NotFound
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip19, nip57
from nodewire.protocol.market import ad

AUTHOR, A, B = (Keys(bytes([n]) * 32) for n in (21, 22, 23))


class Relays:
    """Relays that have what a test puts there, the newest first."""

    def __init__(self, *stored):
        self.stored = stored

    async def fetch(self, filters, timeout_s=10.0):
        return [event for event in self.stored if any(one.matches(event) for one in filters)]


def profile(keys=A, created_at=1, **fields):
    return events.sign(keys, 0, created_at=created_at, content=json.dumps(fields))


async def test_an_event_is_zapped_as_its_tags_want_it():
    tags = [nip57.split_tag(keys.public, "", weight) for keys, weight in ((A, 1), (B, 3))]
    note = events.sign(AUTHOR, 1, created_at=1, content="by two", tags=tags)
    for text in (nip19.build(nip19.Note(note.id)), "nostr:" + nip19.build(nip19.Nevent(note.id))):
        assert zap.names_event(text)
        one = await zap.of_event(Relays(note), text, 1_000, ("wss://a.example",), comment="hi")
        assert [(share.pubkey, share.amount_msat) for share in one.shares] == [(A.public, 250), (B.public, 750)]
        assert (one.event, one.address, one.comment, len(one.name)) == (note.id, None, "hi", 64)


async def test_of_an_address_the_newest_is_zapped_and_named():
    old, new = (events.sign(AUTHOR, 30_023, created_at=n, content=str(n), tags=[["d", "post"]]) for n in (1, 2))
    text = nip19.build(nip19.Naddr(30_023, AUTHOR.public, "post"))
    one = await zap.of_event(Relays(old, new), text, 500, ())
    assert (one.event, one.address) == (new.id, f"30023:{AUTHOR.public}:post")
    assert [(share.pubkey, share.amount_msat) for share in one.shares] == [(AUTHOR.public, 500)]


async def test_an_event_that_no_relay_has_or_whose_tags_are_malformed_is_not_zapped():
    bad = events.sign(AUTHOR, 1, created_at=1, tags=[["zap", "npub1"]])
    with pytest.raises(NotFound, match="event"):
        await zap.of_event(Relays(), nip19.build(nip19.Note(bad.id)), 500, ())
    with pytest.raises(BadZap, match="zap"):
        await zap.of_event(Relays(bad), nip19.build(nip19.Note(bad.id)), 500, ())


@pytest.mark.parametrize("name", ["x", "AB" * 32, "ab" * 31])
def test_the_name_of_an_earlier_zap_is_one(name):
    with pytest.raises(BadInput, match="again"):
        zap.of_key(A.public, 5, (), name=name)
    assert zap.of_key(A.public, 5, (), name="ab" * 32).name == "ab" * 32
    assert zap.of_key(A.public, 5, ()).name != zap.of_key(A.public, 5, ()).name


async def test_a_key_is_paid_where_its_newest_profile_says():
    old, new = profile(lud16="old@a.example"), profile(created_at=2, lud16="ada@a.example")
    assert await zap.endpoint_of(Relays(new, old), A.public) == "https://a.example/.well-known/lnurlp/ada"


async def test_a_provider_is_paid_where_its_ad_says_whatever_its_profile_does():
    offer = ad.ManifestOffer(
        manifest="ab" * 32, slots=1, tasks=(ad.TaskOffer(task="t", price_msat=1, us_per_position=1),)
    )
    one = ad.Ad(name="p", manifests=(offer,), lnurl="https://provider.example/.well-known/lnurlp/nodewire")
    published = ad.build(A, one, created_at=1)
    found = await zap.endpoint_of(Relays(profile(lud16="ada@a.example", created_at=9), published), A.public)
    assert found == "https://provider.example/.well-known/lnurlp/nodewire"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"lud16": 5}', '{"lud16": ""}', '{"name": "ada"}'])
async def test_a_profile_that_names_no_address_pays_nobody(content):
    event = events.sign(A, 0, created_at=1, content=content)
    with pytest.raises(NotFound, match="lud16"):
        await zap.endpoint_of(Relays(event), A.public)


async def test_a_profile_whose_address_is_none_is_told():
    with pytest.raises(BadInput):
        await zap.endpoint_of(Relays(profile(lud16="no address")), A.public)
