"""The shares of a job's chunks, signed by its customer for whoever keeps the treasury. nips/10-treasury.md.

The treasury takes them out of what the customer has paid ahead. It keeps the statement, which proves that it may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from nodewire.errors import BadSignature
from nodewire.nostr.keys import Keys, verify
from nodewire.protocol.encoding import canonical
from nodewire.protocol.encoding.schema import Count, Hex32, Hex64, Schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_CHUNKS = 256
MAX_SHARE_MSAT = 2**53 - 1


class ShareStatement(Schema):
    """`shares` are the msat of chunk `chunk` and of those right after it."""

    TAG: ClassVar[str] = "nodewire/shares/1"
    NAME: ClassVar[str] = "statement"
    MAX_BYTES: ClassVar[int] = 8_192

    v: Literal[1] = 1
    request: Hex32
    customer: Hex32
    holder: Hex32
    chunk: Count
    shares: tuple[Annotated[int, Field(ge=1, le=MAX_SHARE_MSAT)], ...] = Field(min_length=1, max_length=MAX_CHUNKS)
    sig: Hex64

    @classmethod
    def sign(cls, keys: Keys, *, request: str, holder: str, chunk: int, shares: Sequence[int]) -> Self:
        said: dict[str, Any] = {"v": 1, "request": request, "customer": keys.public, "holder": holder}
        said |= {"chunk": chunk, "shares": list(shares)}
        return cls.from_document({**said, "sig": keys.sign(_hash(said)).hex()})

    def by_chunk(self) -> Iterator[tuple[int, int]]:
        """Each chunk with its share in msat."""
        return enumerate(self.shares, start=self.chunk)

    def check(self) -> None:
        """Raises BadSignature: the customer that it names did not sign it."""
        said = self.document()
        signature = bytes.fromhex(said.pop("sig"))
        if not verify(self.customer, _hash(said), signature):
            raise BadSignature("sig", "not the customer's")


def _hash(said: dict[str, Any]) -> bytes:
    return canonical.tagged_hash(ShareStatement.TAG, canonical.encode(said))
