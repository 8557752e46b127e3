"""A round's close (8859): which results count, said before anybody can know what is drawn of them. nips/33.

Its id is what segments are drawn with. It names every result's commitment, so nobody can commit after knowing, and has
32 random bytes of the customer's, so nobody who delivers last can know it before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nodewire.errors import BadEvent, BadInput, BadTag, NotAllowed
from nodewire.nostr import event as _event
from nodewire.protocol import kinds
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.random_draw import draw
from nodewire.protocol.encoding.schema import Hex32, Schema
from nodewire.training.protocol.recipe import MAX_SHARDS, Recipe
from nodewire.training.protocol.round import MAX_ROUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MAX_COUNTED = 96
"""Results of one close: an event has 64 KB. A larger round has several."""
MAX_OTHERS = 64
DOUBT = 4
"""How many times the recipe's share is drawn of a result that is doubted."""
MAX_DRAWN = 64
"""Segments of one result; both ends of each are shown."""


class CountedResult(Schema):
    """A result that the next weights are made of. `doubted`: looking at it leaves doubt, so more of it is drawn."""

    request: Hex32
    provider: Hex32
    index: int = Field(ge=0, lt=MAX_SHARDS)
    result: Hex32
    """The result event's id."""
    commitment: Hex32
    doubted: bool = False


class Close(Schema):
    """`others` are the ids of results that came and do not count."""

    MAX_BYTES: ClassVar[int] = 57_344
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    job: Hex32
    round: int = Field(ge=0, lt=MAX_ROUNDS)
    nonce: Hex32
    """Random."""
    results: tuple[CountedResult, ...] = Field(min_length=1, max_length=MAX_COUNTED)
    others: tuple[Hex32, ...] = Field(default=(), max_length=MAX_OTHERS)

    @model_validator(mode="after")
    def _counts_once(self) -> Self:
        if len({(one.request, one.provider) for one in self.results}) != len(self.results):
            raise ValueError("results: one stands twice")
        return self

    def find_result(self, request: str, provider: str) -> CountedResult | None:
        return next((one for one in self.results if (one.request, one.provider) == (request, provider)), None)


@dataclass(frozen=True, slots=True)
class CloseEvent:
    """A parsed close; `id` is what is drawn with."""

    id: str
    customer: str
    close: Close


def build(keys: Keys, kind: int, close: Close, *, created_at: int) -> Event:
    """The close of a round of `kind`."""
    said = [
        *(["e", request] for request in sorted({one.request for one in close.results})),
        *(["p", provider] for provider in sorted({one.provider for one in close.results})),
        ["k", str(kind)],
    ]
    return _event.sign(keys, kinds.CLOSE, created_at=created_at, tags=said, content=close.to_json())


def parse(event: Event) -> CloseEvent:
    """The close in an event whose signature has been checked. Raises BadEvent, BadTag, BadVersion, TooLarge."""
    tags.check_kind(event, kinds.CLOSE)
    close = Close.parse(event.content)
    for name, said in (("e", {one.request for one in close.results}), ("p", {one.provider for one in close.results})):
        if event.values(name) != sorted(said):
            raise BadTag(name, "not those of the results")
    if tags.number("k", tags.text(event, "k")) not in kinds.ROUNDS:
        raise BadTag("k", "no round of training")
    return CloseEvent(event.id, event.pubkey, close)


def drawn(closed: CloseEvent, counted: CountedResult, recipe: Recipe, steps: int) -> tuple[int, ...]:
    """The segments of a result that are computed again, ascending.

    The last is always among them of a result that is doubted, since behind it is seen whether the update is what came
    of the work, and where something is carried, since with it goes what the next round begins with. Where both are so,
    all are, as far as they can be shown: only its provider has what the round could be trained again from as a whole.
    """
    count = -(-steps // recipe.audit.segment)
    carries = recipe.compression.carries
    fraction = float(recipe.audit.fraction) * (DOUBT if counted.doubted else 1)
    if counted.doubted and carries:
        fraction = 1.0
    most = MAX_DRAWN - (2 if carries else 1 if counted.doubted else 0)
    found = draw(closed.id, counted.commitment, count, min(1.0, fraction), most)
    return tuple(sorted({*found, count - 1})) if carries or counted.doubted else found


def ends(segments: Iterable[int]) -> tuple[int, ...]:
    """The snapshots at both ends of segments, ascending; before the first there is none."""
    return tuple(sorted({end for segment in segments for end in (segment - 1, segment) if end >= 0}))


def shown(segments: Iterable[int], recipe: Recipe, steps: int) -> tuple[int, ...]:
    """All that is to be shown of drawn segments: their ends.

    Where something is carried it is also what was carried into the round, under the number after the last.
    """
    return (*ends(segments), *([-(-steps // recipe.audit.segment)] if recipe.compression.carries else []))


def check_asked(
    closed: CloseEvent, *, job: str, customer: str, request: str, provider: str, commitment: str | None
) -> CountedResult:
    """What a close says of a provider's result.

    Args:
        closed: the close that the request for snapshots names.
        job: the training's.
        customer: whose training it is, a public key.
        request: the round's, by id.
        provider: who is asked to show its work, a public key.
        commitment: what the provider has committed to; None if it has delivered nothing.

    Raises:
        NotAllowed: it is another's close, or of another result: nothing has to be shown for it.

    """
    if closed.customer != customer or closed.close.job != job:
        raise NotAllowed("close", "of another training")
    counted = closed.close.find_result(request, provider)
    if counted is None or commitment is None or counted.commitment != commitment:
        raise NotAllowed("close", "does not name what was delivered")
    return counted
