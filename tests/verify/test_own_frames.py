"""A provider's own frames, pulled by an oracle and sketched anew: what they must hash to, and how much may come."""

import pytest

from nodewire.errors import BadHash, NotAllowed, NotFound, TooLarge
from nodewire.protocol.job.chunk import leaf_of, opening
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.forgery import forged
from nodewire.protocol.verification.sample import Sample
from nodewire.verify import own_frames as module
from nodewire.verify.own_frames import shown_leaves
from tests.protocol import documents
from tests.verify.test_recomputation import ID, MANIFEST, Shows, nodes

DRIVER = documents.PROVIDERS[0]


def frame(seq, *numbers):
    return Frame("hidden.0", seq, (Array("uint8", (len(numbers),), bytes(numbers)),), {"chunk": 1})


SENT = (frame(1, 1, 2), frame(2, 3, 4))


def shown(frames=SENT, disguise=None):
    leaves = [leaf_of(MANIFEST.digest(), one) for one in frames]
    if disguise is not None:
        leaves[0] = leaves[0].model_copy(
            update={"tensors": (leaves[0].tensors[0].model_copy(update={"sketch": disguise}),)}
        )
    return opening(DRIVER, MANIFEST, leaves, request=ID, task="driver", chunk=1, attempt=0)


async def pulled(committed, **answers):
    sample = Sample(
        provider=DRIVER.public, request=ID, task="driver", chunk=1, attempt=0, root=committed.root(), verifiers=()
    )
    driver = Shows(**answers)
    async with nodes(driver, Shows()) as (node, addresses):
        return await shown_leaves(node, addresses[DRIVER.public], sample, MANIFEST, committed)


def kept(*frames):
    return lambda want: iter((0, one) for one in frames)


async def test_the_leaves_of_what_was_sent_are_recomputed_from_it():
    committed = shown(disguise=bytes(2))
    true = await pulled(committed, **{"hidden.0": kept(*reversed(SENT))})
    assert true == shown().leaves
    assert forged(committed.leaves, true) == committed.leaves[:1]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (kept(SENT[0], frame(2, 9, 9)), BadHash),
        (kept(SENT[0]), NotFound),
        (kept(*SENT, frame(3, 5)), TooLarge),
        (kept(SENT[0], frame(3, 5, 6)), BadHash),
        (kept(SENT[0], SENT[0]), BadHash),
        (kept(SENT[0], frame(2, *bytes(9_999))), TooLarge),
        (NotAllowed("pull", "no"), NotAllowed),
    ],
    ids=["other bytes", "one is missing", "one too many", "one of another number", "one twice", "too large", "refused"],
)
async def test_frames_that_were_not_committed_to_prove_nothing(answer, error):
    with pytest.raises(error):
        await pulled(shown(), **{"hidden.0": answer})


async def test_more_than_the_cap_is_not_even_asked_for(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 3)
    with pytest.raises(TooLarge):
        await pulled(shown(), **{"hidden.0": kept(*SENT)})
