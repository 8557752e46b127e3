"""A result's roots: as many of the last as an event has room for."""

import pytest

from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job import result

KEYS, CUSTOMER, REQUEST = Keys(b"\x05" * 32), Keys(b"\x06" * 32), "cd" * 32


def built(count, name, chunk=0):
    roots = [ChunkRoot(request=REQUEST, task=name, chunk=chunk + n, attempt=0, root="ab" * 32) for n in range(count)]
    said = result.ResultDetails(frames=2**53 - 1, compute_us=(2**53 - 1, 2**53 - 1))
    ciphertext = nip44.encrypt(said.to_json(), nip44.conversation_key(KEYS, CUSTOMER.public))
    return roots, result.build(KEYS, REQUEST, CUSTOMER.public, roots, ciphertext, created_at=2**53 - 1)


@pytest.mark.parametrize(("name", "chunk"), [("n" * 64, 10**15 - 1_000), ("a", 0)])
def test_a_result_fits_into_an_event_however_long_its_tasks_names_are(name, chunk):
    roots, event = built(900, name, chunk)
    said = result.parse(events.parse(event.to_json())).roots
    assert 300 < len(said) < 900
    assert said == tuple(roots[-len(said) :])  # the last ones


def test_a_result_of_few_roots_says_them_all():
    roots, event = built(3, "stage.0")
    assert result.parse(event).roots == tuple(roots)
    assert result.parse(built(0, "stage.0")[1]).roots == ()
