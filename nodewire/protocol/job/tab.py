"""What a customer owes a provider for a job so far, signed by the customer. nips/16-payment.md.

It travels as a control document {"t": "tab", "tab": ...} to the provider, or to the job's driver, which passes it on.
The provider keeps the last one of each job: it proves the debt to anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from nodewire.errors import BadFrame, BadInput, BadSignature
from nodewire.nostr.keys import Keys, verify
from nodewire.protocol.encoding import canonical
from nodewire.protocol.encoding.schema import Count, Hex32, Hex64, Msat, Schema

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROL = "tab"
"""The control document's type."""


class Tab(Schema):
    """`total_msat` is the price of all of the payee's chunks that the customer has taken, paid or not.

    `chunk` is the last of them. `attempt` is 0.
    """

    TAG: ClassVar[str] = "nodewire/tab/1"
    MAX_BYTES: ClassVar[int] = 1_024
    ERROR: ClassVar[type[BadInput]] = BadFrame

    v: Literal[1] = 1
    request: Hex32
    attempt: Count
    payee: Hex32
    chunk: Count
    total_msat: Msat
    sig: Hex64

    @classmethod
    def sign(cls, keys: Keys, *, request: str, payee: str, chunk: int, total_msat: int) -> Self:
        said: dict[str, Any] = {"v": 1, "request": request, "attempt": 0, "payee": payee}
        said |= {"chunk": chunk, "total_msat": total_msat}
        return cls.from_document({**said, "sig": keys.sign(_hash(said)).hex()})

    def control(self) -> dict[str, Any]:
        """The control document that carries it."""
        return {"t": CONTROL, CONTROL: self.document()}

    @classmethod
    def from_control(cls, document: Mapping[str, Any]) -> Self | None:
        """The tab in a control document; None if it is one of another type. Raises BadFrame, BadVersion."""
        return cls.from_document(document.get(CONTROL)) if document.get("t") == CONTROL else None

    def check(self, customer: str, request: str) -> None:
        """Check that `customer` (public key) signed this for a job.

        Raises:
            BadFrame: it is of another job, or another attempt.
            BadSignature: the customer did not sign it.

        """
        if self.request != request or self.attempt:
            raise BadFrame("tab", "of another job or attempt")
        said = self.document()
        signature = bytes.fromhex(said.pop("sig"))
        if not verify(customer, _hash(said), signature):
            raise BadSignature("sig", "not the customer's")


def _hash(said: dict[str, Any]) -> bytes:
    return canonical.tagged_hash(Tab.TAG, canonical.encode(said))
