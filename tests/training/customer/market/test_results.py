"""What a customer looks at before its worker gets a result: whatever is not as agreed is said, by its code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from nodewire.errors import NotFound
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.customer.machine.events import Row
from nodewire.training.customer.machine.state import Debt, State
from nodewire.training.customer.market import results
from nodewire.training.customer.market.delivery_cache import Deliveries
from nodewire.training.protocol import result as delivery
from nodewire.training.protocol.result import DeliveryDetails
from tests.kinds.digits import RECIPE

ME, ADA = Keys.generate(), Keys.generate()
REQUEST, HASH = "5e" * 32, "0a" * 32
BALANCE_MSAT = 800
SEGMENTS = -(-RECIPE.steps // RECIPE.audit.segment)


class Course(SimpleNamespace):
    """One shard of round 3 at ada; `coordinator` takes whatever it gets, and says so."""

    def __init__(self) -> None:
        row = Row(1, ADA.public, RECIPE.steps, 200, BALANCE_MSAT, "", "")
        super().__init__(
            recipe=RECIPE,
            state=State(debts={(REQUEST, ADA.public): Debt(row, 3)}),
            session=SimpleNamespace(keys=ME, blobs=self),
            deliveries=Deliveries(ME),
            coordinator=self,
            took=[],
        )

    async def get(self, ref: BlobRef, *, inline: bytes | None = None) -> Path:
        if ref.bytes == 1:
            raise NotFound("blob", "nobody has it")
        return Path("update")

    async def result(self, *given) -> tuple[bool, str]:
        self.took.append(given)
        return True, ""


def result(
    *, blob_bytes: int = 100, amount_msat: int = BALANCE_MSAT, author: Keys = ADA, index: int = 1, **said
) -> str:
    """The event that ada delivers, committed to as shard `index` of `author`."""
    fields = {"key": HASH, "sha256": HASH, "bytes": 9, "samples": 1, "losses": (), "states": (HASH,) * SEGMENTS}
    opened = DeliveryDetails(**{**fields, **said})
    return delivery.build(
        ADA,
        8840,
        REQUEST,
        ME.public,
        delivery.Goods(
            commitment=opened.commitment(author.public, REQUEST, 3, index),
            blob=BlobRef(sha256=HASH, bytes=blob_bytes),
            amount_msat=amount_msat,
            ciphertext=nip44.encrypt(opened.to_json(), nip44.conversation_key(ADA, ME.public)),
        ),
        created_at=1,
    ).to_json()


async def test_a_result_as_agreed_goes_to_the_worker():
    course = Course()
    assert await results.fetched(course, REQUEST, ADA.public, result()) == (True, "")
    assert course.took == [(3, 1, RECIPE.steps, Path("update"), HASH, HASH, None)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"author": ME}, "bad-hash: x"),
        ({"index": 0}, "bad-hash: x"),
        ({"states": (HASH,) * (SEGMENTS - 1)}, "bad-input: states"),
        ({"states": (HASH,) * (SEGMENTS + 1)}, "bad-input: states"),
        ({"carried": HASH}, "bad-input: carried"),
        ({"amount_msat": BALANCE_MSAT + 1}, "bad-input: amount"),
        ({"blob_bytes": 10**9}, "too-large: result"),
        ({"blob_bytes": 1}, "not-found: blob"),
    ],
)
async def test_anything_else_never_gets_there(changes, why):
    course = Course()
    fine, reason = await results.fetched(course, REQUEST, ADA.public, result(**changes))
    assert not fine and reason.startswith(why)
    assert not course.took
