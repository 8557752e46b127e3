"""What comes in: beats, ads, commitments, what oracles say, certificates, blobs; checked, bounded, and remembered."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.errors import BadInput
from nodewire.oracle.committee import node_places
from nodewire.oracle.committee.state import (
    Action,
    FetchBlob,
    KeepBlob,
    KeepEvent,
    KeepVerdict,
    PublishFault,
    PublishPartial,
    Round,
    State,
    Step,
)
from nodewire.protocol.committee import commitment as _commitment
from nodewire.protocol.committee import oracle_round as _inventory
from nodewire.protocol.committee import quorum_certificate as _certificate
from nodewire.protocol.committee.commitment import Commitment
from nodewire.protocol.committee.committee import KEPT_EPOCHS, VALID_EPOCHS
from nodewire.protocol.committee.oracle_round import Inventory, InventoryEvent, Proposal, Supply, Vote
from nodewire.protocol.committee.reputation import COUNTED_AFTER, ReputationVerdict
from nodewire.protocol.encoding import pieces, tags
from nodewire.protocol.market import ad as _ad
from nodewire.protocol.market import bond as _bond
from nodewire.protocol.market import heartbeat as _beat
from nodewire.protocol.market import snapshot as _snapshot
from nodewire.protocol.verification import verdict as _verdict

if TYPE_CHECKING:
    from nodewire.core.slices import Sliced
    from nodewire.nostr.event import Event
    from nodewire.protocol.committee.quorum_certificate import Certificate

KEPT_CERTIFICATES = 16
STRANGERS = _inventory.MAX_COMMITMENTS // 2
"""Room in an epoch for the commitments of whoever comes first; the rest is for nodes with a bond."""
MAX_UNBONDED_BLOBS = 64
"""Blobs of commitments that an epoch fetches of nodes without a bond, whatever bonded nodes commit to."""
MAX_UNBONDED_BLOB_BYTES = 262_144
"""About 1,200 chunks."""
JUDGED_EPOCHS = COUNTED_AFTER + _snapshot.REMEMBERED_EPOCHS + VALID_EPOCHS
"""How long after its draw a verdict may still have to be listed."""


def receive(event: Event, state: State) -> Step:
    """The state with what a verified event says. Raises BadInput if it is malformed."""
    match event.kind:
        case _beat.KIND:
            return node_places.beat_came(event, state)
        case _ad.KIND:
            return node_places.ad_came(event, state)
        case _bond.KIND:
            return node_places.bond_came(event, state)
        case _commitment.KIND:
            return _commitment_came(event, state)
        case _inventory.KIND:
            return _said(event, state)
        case _certificate.KIND if tags.text(event, "n").startswith(_verdict.topic("")):
            return _judged_came(event, state)
        case _certificate.KIND:
            after, actions = certificate_came(_certificate.parse(event), state)
            return after, (*actions, KeepEvent(event)) if after.certified is not state.certified else actions
    return state, ()


def _commitment_came(event: Event, state: State) -> Step:
    committed = _commitment.parse(event)
    epoch, provider = committed.epoch, committed.provider
    if committed.committee != state.digest or not state.epoch - 1 <= epoch <= state.epoch + 1:
        return state, ()
    mine, bare = state.commitments.get(epoch, {}), state.bare.get(epoch, {})
    if provider in mine or provider in bare or len(mine) + len(bare) >= _inventory.MAX_COMMITMENTS:
        return state, ()
    is_bonded = state.backed.get(provider, 0) > 0
    if len(mine) + len(bare) >= STRANGERS and not is_bonded:
        return state, ()
    keep = KeepEvent(event)
    if committed.commitment is not None:
        return replace(state, commitments={**state.commitments, epoch: {**mine, provider: event.id}}), (keep,)
    unbonded = state.unbonded_blobs.get(epoch, 0) + (not is_bonded)
    if unbonded > MAX_UNBONDED_BLOBS and not is_bonded:
        return state, ()
    state = replace(state, bare={**state.bare, epoch: {**bare, provider: committed}})
    state, ask = fetch_commitments(replace(state, unbonded_blobs={**state.unbonded_blobs, epoch: unbonded}))
    return state, (keep, *ask)


def fetch_commitments(state: State) -> Step:
    """Ask for the blobs that are not at hand of commitments that can still be listed."""
    actions: list[Action] = []
    open_ = [bare for epoch, bare in state.bare.items() if not state.rounds.get(epoch, Round()).listed]
    wanted: dict[str, int] = {}
    for one in (one for bare in open_ for one in bare.values()):
        if one.blob is not None:
            most = Commitment.MAX_BYTES if state.backed.get(one.provider, 0) else MAX_UNBONDED_BLOB_BYTES
            wanted[one.blob] = max(most, wanted.get(one.blob, 0))
    for sha256, max_bytes in sorted(wanted.items()):
        state, ask = state.ask(f"commitment/{sha256}", FetchBlob(sha256, max_bytes, is_urgent=False))
        actions += ask
    return state, tuple(actions)


def _said(event: Event, state: State) -> Step:
    if state.committee.oracle(event.pubkey) is None or tags.text(event, "c") != state.digest:
        return state, ()
    said = _inventory.parse(event)
    epoch = tags.epoch_of(event)
    if not state.epoch - VALID_EPOCHS <= epoch <= state.epoch + 1:
        return state, ()
    round_ = state.rounds.get(epoch, Round())
    if isinstance(said, Supply):
        count = round_.supplies.get(said.oracle, 0)
        if count < _inventory.MAX_SUPPLIES:
            extra = {**round_.extra, **{supplied.id: supplied for supplied in said.events}}
            supplies = {**round_.supplies, said.oracle: count + 1}
            state = state.with_round(epoch, replace(round_, extra=extra, supplies=supplies))
        return state, ()
    round_, actions = _accuse(event, round_)
    match said:
        case InventoryEvent():
            cited = any(said.id in proposal.body.inventories for proposal in round_.proposals.values())
            if cited or sum(listed.oracle == said.oracle for listed in round_.inventories.values()) < 2:
                known = round_.inventories.get(said.id, said)
                if said.id not in round_.inventories and (said.inventory is None or said.inventory.commitments):
                    actions += (KeepEvent(event),)
                round_ = replace(round_, inventories={**round_.inventories, said.id: known})
                if known.inventory is None and known.blob is not None:
                    state, ask = state.ask(f"blob/{known.blob}", FetchBlob(known.blob, Inventory.MAX_BYTES))
                    actions += ask
        case Proposal():
            if said.oracle == state.committee.leader(epoch) and len(round_.proposals) < 2:
                round_ = replace(round_, proposals={**round_.proposals, said.x: said})
        case Vote():
            round_ = _with_vote(event, said, round_, state)
    return state.with_round(epoch, round_), actions


def _with_vote(event: Event, vote: Vote, round_: Round, state: State) -> Round:
    if (vote.x, vote.oracle) in round_.votes or sum(oracle == vote.oracle for _, oracle in round_.votes) >= 2:
        return round_
    votes = {**round_.votes, (vote.x, vote.oracle): event}
    full = sum(x == vote.x for x, _ in votes) >= state.committee.quorum
    return replace(
        round_, votes=votes, quorum_ms=state.now_ms if full and round_.quorum_ms is None else round_.quorum_ms
    )


def _accuse(event: Event, round_: Round) -> tuple[Round, tuple[Action, ...]]:
    """Remember what was said, or prove that it contradicts what its author said before."""
    key = (event.pubkey, tags.text(event, "t"))
    first = round_.said.get(key)
    if first is None:
        return replace(round_, said={**round_.said, key: event}), ()
    if key in round_.accused or tags.text(first, "x") == tags.text(event, "x"):
        return round_, ()
    return replace(round_, accused=round_.accused | {key}), (PublishFault(_certificate.contradiction(first, event)),)


def _judged_came(event: Event, state: State) -> Step:
    """Keep what a certified verdict says of the provider. Raises BadQuorum, and as `verdict.parse`."""
    if event.tag("c") != state.digest or tags.text(event, "n").removeprefix(_verdict.topic("")) in state.judged:
        return state, ()
    certificate = _verdict.parse(event)
    verdict = certificate.verdict
    outcome = verdict.outcome
    if outcome == "fail" or (outcome == "unsure" and not verdict.is_in_doubt):
        return state, ()
    if not state.epoch - JUDGED_EPOCHS <= verdict.epoch <= state.epoch:
        return state, ()
    certificate.check(state.committee)
    judged = ReputationVerdict(
        epoch=verdict.epoch,
        sample=verdict.key,
        provider=verdict.provider,
        outcome=outcome,
        price_msat=verdict.price_msat,
    )
    return replace(state, judged={**state.judged, judged.sample: judged}), (KeepVerdict(judged),)


def certificate_came(certificate: Certificate, state: State) -> Step:
    """Check and keep a certificate; the first of its epoch has this oracle publish its partial. Raises BadQuorum."""
    epoch = certificate.body.epoch
    if certificate.body.committee != state.digest or not state.epoch - KEPT_EPOCHS <= epoch <= state.epoch:
        return state, ()
    known = next((c for c in state.certified if c.body.epoch == epoch), None)
    if known is not None and known.digest == certificate.digest:
        return state, ()
    if len(state.certified) >= KEPT_CERTIFICATES and epoch < state.certified[0].body.epoch:
        return state, ()
    certificate.check(state.committee)
    actions: list[Action] = []
    if state.epoch - VALID_EPOCHS <= epoch:
        round_ = state.rounds.get(epoch, Round())
        for vote in certificate.votes:
            round_, more = _accuse(vote, round_)
            actions += more
        state = state.with_round(epoch, round_)
    if known is None:
        certified = sorted((*state.certified, certificate), key=lambda c: c.body.epoch)
        state = replace(state, certified=tuple(certified[-KEPT_CERTIFICATES:]))
        if state.epoch - VALID_EPOCHS <= epoch + 1:
            actions.append(PublishPartial(certificate.body))
    return state, tuple(actions)


def blob_came(sha256: str, data: bytes, state: State) -> Sliced[Step]:
    """Whatever asked for this blob gets it; a blob that is not what it should be is as good as none."""
    state, actions = _commitments_came(sha256, data, state)
    yield
    state, more = yield from _other_blob_came(sha256, data, state)
    return state, actions + more


def _commitments_came(sha256: str, data: bytes, state: State) -> Step:
    """Who committed to what is in this blob can be listed; whose event says something else never is."""
    if all(one.blob != sha256 for bare in state.bare.values() for one in bare.values()):
        return state, ()
    try:
        document = Commitment.unpack(data)
    except BadInput:
        document = None
    said = None if document is None else (document.committee, document.epoch, document.root())
    is_good = hashlib.sha256(data).hexdigest() == sha256
    actions: tuple[Action, ...] = ()
    for epoch, bare in state.bare.items():
        cited = [one for one in bare.values() if one.blob == sha256]
        sound = [one for one in cited if is_good and said == (one.committee, one.epoch, one.root)]
        mine = {**state.commitments.get(epoch, {}), **{one.provider: one.id for one in sound}}
        others = {provider: one for provider, one in bare.items() if one not in sound}
        left = {provider: replace(one, blob=None) if one in cited else one for provider, one in others.items()}
        state = replace(state, bare={**state.bare, epoch: left}, commitments={**state.commitments, epoch: mine})
        actions = (KeepBlob(data),) if sound else actions
    return state, actions


def _other_blob_came(sha256: str, data: bytes, state: State) -> Sliced[Step]:
    actions: tuple[Action, ...] = ()
    for epoch, round_ in state.rounds.items():
        inventories = dict(round_.inventories)
        for listed in round_.inventories.values():  # oracles that agree cite the same blob
            if listed.blob == sha256 and listed.inventory is None:
                with contextlib.suppress(BadInput):
                    inventories[listed.id] = listed.attach(data)
                    yield
                    actions = (KeepBlob(data),)
        state = state.with_round(epoch, replace(round_, inventories=inventories))
    if actions:
        return state, actions
    for epoch, round_ in state.rounds.items():
        if not round_.voted and any(proposal.body.snapshot == sha256 for proposal in round_.proposals.values()):
            if (yield from pieces.sha256(data)) == sha256:
                state = state.with_round(epoch, replace(round_, offered={**round_.offered, sha256: data}))
            return state, ()
    if sha256 not in {certificate.body.snapshot for certificate in state.certified}:
        return state, ()
    try:
        found = yield from _snapshot.unpacked(data, sha256)
        return replace(state, snapshots={**state.snapshots, sha256: found}), ()
    except BadInput:
        return state, ()
