"""What certified verdicts owe one key and it has not pulled yet: found on relays, and asked of the bonds' holder."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NotFound
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.verification import verdict

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.relays import Relays
    from nodewire.pay.bond.bond_holder import BondHolder
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.verification.verdict import Certificate

RECENT_EPOCHS = 1_024
"""How old a verdict on others' jobs may be; those on jobs of the key itself are all looked at."""
_REQUESTS_PER_FETCH = 256


@dataclass(frozen=True, slots=True)
class Claimable:
    """A verdict that owes the key `amount_msat`; 0 if nobody has presented it yet (`is_presented`)."""

    certificate: str
    """The certificate's event id: what is claimed by."""
    request: str
    task: str
    chunk: int
    outcome: str
    amount_msat: int
    is_presented: bool


async def find(relays: Relays, committee: Committee, holder: BondHolder, public: str) -> list[Claimable]:
    """What a customer with this key can claim, and a verifier or an oracle of recent verdicts; the newest first.

    Raises:
        LinkLost, TimedOut: relays or the holder do not answer.

    """
    mine = Filter(kinds=frozenset({kinds.INFERENCE}), authors=frozenset({public}))
    requests = sorted(event.id for event in await relays.fetch_all([mine]))
    certificates, about = frozenset({kinds.CERTIFICATE}), {"c": frozenset({committee.digest()})}
    since = int(time.time()) - RECENT_EPOCHS * committee.epoch_ms // 1000
    wanted = [Filter(kinds=certificates, tags=about, since=since)]
    for i in range(0, len(requests), _REQUESTS_PER_FETCH):
        some = frozenset(requests[i : i + _REQUESTS_PER_FETCH])
        wanted.append(Filter(kinds=certificates, tags={"e": some}))
    events = {event.id: event for one in wanted for event in await relays.fetch_all([one])}
    found: dict[str, Claimable] = {}
    is_oracle = committee.oracle(public) is not None
    for event in sorted(events.values(), key=lambda event: (-event.created_at, event.id)):
        certified = _certified(event, committee)
        if certified is None:
            continue
        said = certified.verdict
        bought = said.request in requests and (said.outcome in ("fail", "withheld") or said.equivocated is not None)
        if said.key in found or not (bought or (public, True) in said.verifiers or (is_oracle and said.convicted)):
            continue
        try:
            due_msat, presented = (await holder.case(said.key)).due.get(public, 0), True
        except NotFound:
            due_msat, presented = 0, False
        if due_msat or not presented:
            found[said.key] = Claimable(
                event.id, said.request, said.task, said.chunk, said.outcome, due_msat, presented
            )
    return list(found.values())


def _certified(event: Event, committee: Committee) -> Certificate | None:
    """The verdict's certificate in `event`, if it is one and holds."""
    if not (event.tag("n") or "").startswith("verdict/"):
        return None
    try:
        one = verdict.parse(event)
        one.check(committee)
    except BadInput:
        return None
    return one
