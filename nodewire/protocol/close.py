"""How a chunk ends: the driver's signed word that its positions were accepted. NIPS.md, "Chunks and payment".

It travels as a control document {"t": "close", "close": ...} to every provider of the job and to the customer, and is
kept as evidence of what was due.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from nodewire.errors import BadFrame, BadInput, BadSignature
from nodewire.nostr.keys import Keys, verify
from nodewire.protocol import canonical
from nodewire.protocol.schema import Count, Hex32, Hex64, Schema

CONTROL = "close"
"""The control document's type."""
WITHDRAW = "withdraw"
"""The type of a customer's word to a provider that it gives the job up."""


class Close(Schema):
    """`units` chunks' worth was computed in `chunk` of `attempt`; `end` says that it was the job's last."""

    TAG: ClassVar[str] = "nodewire/close/1"
    MAX_BYTES: ClassVar[int] = 1_024
    ERROR: ClassVar[type[BadInput]] = BadFrame

    v: Literal[1] = 1
    request: Hex32
    attempt: Count
    chunk: Count
    units: Count
    end: bool
    sig: Hex64

    @classmethod
    def sign(cls, keys: Keys, *, request: str, attempt: int, chunk: int, units: int, end: bool) -> Self:
        said = {"v": 1, "request": request, "attempt": attempt, "chunk": chunk, "units": units, "end": end}
        return cls.from_document({**said, "sig": keys.sign(_hash(said)).hex()})

    def control(self) -> dict[str, Any]:
        """The control document that carries it."""
        return {"t": CONTROL, CONTROL: self.document()}

    @classmethod
    def from_control(cls, document: Mapping[str, Any]) -> Self | None:
        """The close in a control document; None if it is one of another type. Raises BadFrame, BadVersion."""
        return cls.from_document(document.get(CONTROL)) if document.get("t") == CONTROL else None

    def check(self, driver: str) -> None:
        """Check that `driver` (public key) signed this.

        Raises:
            BadSignature: it did not.
        """
        said = self.document()
        signature = bytes.fromhex(said.pop("sig"))
        if not verify(driver, _hash(said), signature):
            raise BadSignature("sig", "not the driver's")


def _hash(said: dict[str, Any]) -> bytes:
    return canonical.tagged_hash(Close.TAG, canonical.encode(said))
