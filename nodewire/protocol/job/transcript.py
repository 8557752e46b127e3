"""A generation's transcript: what was asked, whose work each token is, and what it cost. nips/25-receipts.md.

It has what was committed to each token, too.

The customer writes and signs it, for whom it likes: it holds the prompt and the tokens. Everything in it that others
have said is there as they signed it. The chain runs over the tokens chunk by chunk, each with the roots that its stages
committed to, so that it stands for the whole text and for nothing else.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from nodewire.errors import BadFrame, BadInput, BadSignature
from nodewire.nostr import keys as _keys
from nodewire.protocol.encoding import canonical
from nodewire.protocol.encoding.schema import Count, Hex32, Hex64, Msat, Name, Schema
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.tensors.frame import Array, Frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodewire.nostr.keys import Keys

MAX_JOBS = 64
MAX_TOKENS = 2**20
EventText = Annotated[str, Field(max_length=262_144)]
"""A signed event as JSON."""
Document = Annotated[str, Field(max_length=65_536)]
"""A document as JSON."""


class TaskRoot(Schema):
    """The root of what a task put out in a chunk, by who says so in its result."""

    provider: Hex32
    task: Name
    chunk: Count
    attempt: Count
    root: Hex32


class Part(Schema):
    """One job of a generation, which made its tokens from number `first` on."""

    request: EventText
    ticket: Document
    """What opened it at its providers: the parameters, and the hash of what was asked."""
    first: Count
    ads: tuple[EventText, ...] = Field(max_length=1_024)
    """Of its providers, as the plan's snapshot has them: their hardware and region by their own word."""
    rtts_us: tuple[tuple[Name, Count], ...] = Field(max_length=1_024)
    """By edge between tasks, the round trip between its two nodes, by the coordinates of the plan's snapshot."""
    roots: tuple[TaskRoot, ...] = Field(max_length=2**16)
    receipts: tuple[EventText, ...] = Field(max_length=1_024)
    paid_msat: Msat
    """To providers."""
    fees_msat: Msat
    share_msat: Msat
    """For verification."""


class GenerationTranscript(Schema):
    TAG: ClassVar[str] = "nodewire/generation/1"
    MAX_BYTES: ClassVar[int] = 2**26
    ERROR: ClassVar[type[BadInput]] = BadInput

    v: Literal[1] = 1
    customer: Hex32
    model: str = Field(max_length=256)
    """The manifest's address."""
    manifest: str = Field(max_length=Manifest.MAX_BYTES)
    """As JSON; its digest, which stands for programs and weights, is what plans cite."""
    size: int = Field(ge=1, le=4_096)
    """Positions of a chunk."""
    prompt: str = Field(max_length=2**24)
    ids: tuple[Count, ...] = Field(max_length=MAX_TOKENS)
    jobs: tuple[Part, ...] = Field(min_length=1, max_length=MAX_JOBS)
    chain: Hex32
    sig: Hex64 = "0" * 128

    @model_validator(mode="after")
    def _begins_at_the_beginning(self) -> Self:
        if self.jobs[0].first:
            raise ValueError("jobs: the first one made no first token")
        if any(part.first > len(self.ids) for part in self.jobs):
            raise ValueError("jobs: one begins behind the last token")
        return self

    def signed(self, keys: Keys) -> Self:
        return self.model_copy(update={"sig": keys.sign(self._said()).hex()})

    def check_signature(self) -> None:
        """Raises BadSignature: it is not what its customer has signed."""
        if not _keys.verify(self.customer, self._said(), bytes.fromhex(self.sig)):
            raise BadSignature("sig", "not its customer's")

    def chunks(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Number of the job, chunk, and tokens: of all that the text is made of, in order.

        What a later job made again is that one's.
        """
        for number, part in enumerate(self.jobs):
            end = min((later.first for later in self.jobs[number + 1 :]), default=len(self.ids))
            at, chunk = part.first, 0
            while at < end:
                upto = min(end, part.first + 1 + chunk * self.size)
                yield number, chunk, self.ids[at:upto]
                at, chunk = upto, chunk + 1

    def links(self) -> Iterator[str]:
        """The chain, from what was asked on: its last link is what `chain` has to be. Raises as Manifest.parse."""
        asked = hashlib.sha256(self.prompt.encode()).hexdigest()
        digest = Manifest.parse(self.manifest).digest()
        link = canonical.digest(self.TAG + "/chain", [self.customer, digest, self.size, asked])
        yield link
        for number, chunk, ids in self.chunks():
            part = self.jobs[number]
            roots = sorted([one.task, one.provider, one.attempt, one.root] for one in part.roots if one.chunk == chunk)
            request = hashlib.sha256(part.request.encode()).hexdigest()
            link = canonical.digest(self.TAG + "/chain", [link, request, chunk, list(ids), roots])
            yield link

    def _said(self) -> bytes:
        said = self.document()
        del said["sig"]
        return bytes.fromhex(canonical.digest(self.TAG, said))


def asked(edge: str, prompt: str, history: tuple[int, ...]) -> Frame[Array]:
    """What a job of a generation is sent: the text, and what earlier jobs have made of it.

    Raises:
        BadFrame: a token is beyond int64.

    """
    text = prompt.encode()
    tensors: tuple[Array, ...] = (Array("uint8", (len(text),), text),)
    if history:
        try:
            ids = np.array(history, np.int64)
        except OverflowError as error:
            raise BadFrame("ids", "a token is beyond int64") from error
        tensors += (Array("int64", ids.shape, ids.tobytes()),)
    return Frame(edge, 0, tensors, {"chunk": 0})
