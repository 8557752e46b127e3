"""How a chunk ends: the driver's signed word that its positions were accepted. nips/16-payment.md.

It travels as a control document {"t": "close", "close": ...} to every provider of the job and to the customer, and is
kept as evidence of what was due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import SerializerFunctionWrapHandler, model_serializer

from nodewire.errors import BadFrame, BadInput, BadSignature
from nodewire.nostr.keys import Keys, verify
from nodewire.protocol.encoding import canonical
from nodewire.protocol.encoding.schema import Count, Hex32, Hex64, Schema

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROL = "close"
"""The control document's type."""
WITHDRAW = "withdraw"
"""The type of a customer's word to a provider that it gives the job up."""


class Close(Schema):
    """`units` chunks' worth was computed in `chunk`; `end` says that it was the job's last. `attempt` is 0."""

    TAG: ClassVar[str] = "nodewire/close/1"
    MAX_BYTES: ClassVar[int] = 1_024
    ERROR: ClassVar[type[BadInput]] = BadFrame

    v: Literal[1] = 1
    request: Hex32
    attempt: Count
    chunk: Count
    units: Count
    end: bool
    positions: Count | None = None
    """How many of the last chunk's count, if not all; left out of a document else."""
    sig: Hex64

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if self.positions is None:
            del said["positions"]
        return said

    @classmethod
    def sign(
        cls,
        keys: Keys,
        *,
        request: str,
        attempt: int,
        chunk: int,
        units: int,
        end: bool,
        positions: int | None = None,
    ) -> Self:
        said: dict[str, Any] = {"v": 1, "request": request, "attempt": attempt}
        said |= {"chunk": chunk, "units": units, "end": end}
        if positions is not None:
            said["positions"] = positions
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
