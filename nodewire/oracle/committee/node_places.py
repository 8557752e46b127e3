"""The places of nodes, which are few: bonded nodes come before strangers, strangers by the work in their ads.

A node's rank is (its bond's units, most first; the id of its ad). An id is a hash: nothing but work makes it small
(NIP-13). When all places are taken, the last in rank goes.

A bonded node, of which a holder that the committee lists has stated a bond, has a place from its first beat on. A
stranger waits until the ad that its beat names has come. A key that only beats never gets further: those that wait are
two halves, and when the newer half is full the older is forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.core.persistent_map import PersistentMap
from nodewire.nostr.event import Event
from nodewire.oracle.committee.state import FetchCertificates, FetchEvents, PendingBeats, Rank, State, Step
from nodewire.protocol.committee.committee import VALID_EPOCHS
from nodewire.protocol.market import ad as _ad
from nodewire.protocol.market import bond as _bond
from nodewire.protocol.market import heartbeat as _beat
from nodewire.protocol.market import snapshot as _snapshot
from nodewire.protocol.market.heartbeat import Beat

if TYPE_CHECKING:
    from nodewire.core.slices import Sliced
    from nodewire.protocol.market.bond import BondStatement

MAX_PLACES = 2 * _snapshot.MAX_NODES
MAX_WAITING = 4_096
MAX_STATEMENTS = 16_384
"""Of listed holders; one that an ad names is taken beyond them."""
BEATS_PER_NODE = 8

_Beats = tuple[tuple[Event, Beat], ...]


# ---- what comes in ------------------------------------------------------------------------------------------------


def beat_came(event: Event, state: State) -> Step:
    """Remember a beat, if its node has a place or may get one. Raises BadInput."""
    beat, pubkey = _beat.parse(event), event.pubkey
    oldest, newest = state.epoch - state.committee.live_epochs - 1, state.epoch + 1
    if beat.committee != state.digest or not oldest <= beat.epoch <= newest or pubkey in state.convicted:
        return state, ()
    mine = state.beats.get(pubkey)
    if mine is None:
        state, actions = _newcomer(event, beat, state)
    elif any(known.id == event.id for known, _ in mine):
        return state, ()
    else:
        state = replace(state, beats=state.beats.including(pubkey, _newest((*mine, (event, beat)))))
        state, actions = _want(pubkey, state)
    if beat.last != state.digest and all(beat.last != certificate.digest for certificate in state.certified):
        state, ask = state.ask("certificates", FetchCertificates())
        actions += ask
    return state, actions


def ad_came(event: Event, state: State) -> Step:
    """Remember the ad that a node's beat names: with it a stranger that waits may take a place. Raises BadInput."""
    pubkey = event.pubkey
    waiting = _waiting(pubkey, state)
    mine = state.beats.get(pubkey) or (waiting.beats if waiting is not None else ())
    if event.id in state.ads or all(beat.ad != event.id for _, beat in mine):
        return state, ()
    ad = _ad.parse(event)
    if state.digest not in ad.committees:
        return state, ()
    if pubkey not in state.beats:
        state = _no_longer_waiting(pubkey, state)
        if _is_full_before((0, event.id, pubkey), state):
            return replace(state, crowded_out=state.crowded_out + 1), ()
        state = replace(state, beats=state.beats.including(pubkey, mine))
    state = _ranked(pubkey, replace(state, ads=state.ads.including(event.id, (event, ad))))
    return _want(pubkey, state) if pubkey in state.beats else (state, ())


def bond_came(event: Event, state: State) -> Step:
    """Remember a bond statement that an ad names, or that a listed holder has signed. Raises BadInput."""
    statement = _bond.parse(event)
    provider = statement.provider
    if event.id in state.bonds:
        return state, ()
    counts = _counts(statement, state)
    if event.id not in _named_bonds(provider, state) and (not counts or len(state.bonds) >= MAX_STATEMENTS):
        return state, ()
    state = replace(state, bonds=state.bonds.including(event.id, (event, statement)))
    units = _units(statement, state)
    if not counts or units <= state.backed.get(provider, 0):
        return state, ()
    state = replace(state, backed=state.backed.including(provider, units))
    waiting = _waiting(provider, state)
    if waiting is not None:
        state = replace(_no_longer_waiting(provider, state), beats=state.beats.including(provider, waiting.beats))
    return (_ranked(provider, state) if provider in state.beats else state), ()


# ---- at an epoch's end --------------------------------------------------------------------------------------------


def pruned(state: State) -> Sliced[State]:
    """Without beats that are too old to count, nodes that have no others, and what is held for these."""
    oldest = state.epoch - state.committee.live_epochs - 2
    kept: dict[str, _Beats] = {}
    named: set[str] = set()
    for pubkey, beats in state.beats.items():
        if pubkey not in state.convicted and (since := _since(oldest, beats)):
            kept[pubkey] = since
            named.update(beat.ad for _, beat in since)
        yield
    ads = {id_: pair for id_, pair in state.ads.items() if id_ in named}
    named_bonds = {ad.bond for _, ad in ads.values()}
    yield
    bonds: dict[str, tuple[Event, BondStatement]] = {}
    backed: dict[str, int] = {}
    for id_, (event, statement) in state.bonds.items():
        counts = _counts(statement, state)
        if counts or id_ in named_bonds:
            bonds[id_] = event, statement
        if counts and (units := _units(statement, state)):
            backed[statement.provider] = max(units, backed.get(statement.provider, 0))
        yield
    state = replace(state, ads=PersistentMap(ads), bonds=PersistentMap(bonds), backed=PersistentMap(backed))
    yield
    placed: dict[str, Rank] = {}
    for pubkey, beats in kept.items():
        if (rank := _rank(pubkey, beats, state)) is not None:
            placed[pubkey] = rank
        yield
    beats_placed = PersistentMap({pubkey: kept[pubkey] for pubkey in placed})
    yield
    return replace(state, beats=beats_placed, ranks=PersistentMap(placed), order=tuple(sorted(placed.values())))


# ---- smaller parts ------------------------------------------------------------------------------------------------


def _newcomer(event: Event, beat: Beat, state: State) -> Step:
    """Give a bonded node its place; let a stranger wait for its ad, if with that ad it can have one."""
    pubkey = event.pubkey
    if state.backed.get(pubkey, 0):
        state = _ranked(pubkey, replace(state, beats=state.beats.including(pubkey, ((event, beat),))))
        return _want(pubkey, state) if pubkey in state.beats else (state, ())
    if _is_full_before((0, beat.ad, pubkey), state):
        return replace(state, crowded_out=state.crowded_out + 1), ()
    known = _waiting(pubkey, state)
    if known is not None and any(other.id == event.id for other, _ in known.beats):
        return state, ()
    beats = _newest((*(known.beats if known is not None else ()), (event, beat)))[:2]
    is_asked = known is not None and beats[0][1].ad == known.beats[0][1].ad and state.is_recent(known.asked_ms)
    asked_ms = known.asked_ms if known is not None and is_asked else state.now_ms
    waiting, waited = state.waiting, state.waited
    if len(waiting) >= MAX_WAITING // 2:
        waiting, waited = PersistentMap[PendingBeats](), waiting
    state = replace(state, waiting=waiting.including(pubkey, PendingBeats(beats, asked_ms)), waited=waited)
    return state, () if is_asked else (FetchEvents((beats[0][1].ad,), is_urgent=False),)


def _waiting(pubkey: str, state: State) -> PendingBeats | None:
    return state.waiting.get(pubkey) or state.waited.get(pubkey)


def _no_longer_waiting(pubkey: str, state: State) -> State:
    return replace(state, waiting=state.waiting.without(pubkey), waited=state.waited.without(pubkey))


def _want(pubkey: str, state: State) -> Step:
    """Ask for what a node's newest beat names and this oracle does not hold."""
    ad, is_bonded = state.beats[pubkey][0][1].ad, state.backed.get(pubkey, 0) > 0
    if ad not in state.ads:
        return state.ask(f"ad/{pubkey}", FetchEvents((ad,), is_bonded))
    bond = state.ads[ad][1].bond
    if bond is not None and bond not in state.bonds:
        return state.ask(f"bond/{pubkey}", FetchEvents((bond,), is_bonded))
    return state, ()


def _is_full_before(rank: Rank, state: State) -> bool:
    """Whether all places are taken by nodes of a better rank."""
    return len(state.order) >= MAX_PLACES and state.order[-1] < rank


def _rank(pubkey: str, beats: _Beats, state: State) -> Rank | None:
    """A node's rank by the newest of its ads that is at hand. None: a stranger, none of whose ads is."""
    units = state.backed.get(pubkey, 0)
    ad = next((beat.ad for _, beat in beats if beat.ad in state.ads), beats[0][1].ad if units else None)
    return None if ad is None else (-units, ad, pubkey)


def _ranked(pubkey: str, state: State) -> State:
    """With a placed node where its rank is now; the last of all loses its place if there is one too many."""
    rank, old = _rank(pubkey, state.beats[pubkey], state), state.ranks.get(pubkey)
    if rank is None or rank == old:
        return state
    order = state.order if old is None else _cut(state.order, old)
    at = bisect_left(order, rank)
    state = replace(state, order=(*order[:at], rank, *order[at:]), ranks=state.ranks.including(pubkey, rank))
    return _without(state.order[-1][-1], state) if len(state.order) > MAX_PLACES else state


def _cut(order: tuple[Rank, ...], rank: Rank) -> tuple[Rank, ...]:
    at = bisect_left(order, rank)
    return (*order[:at], *order[at + 1 :])


def _without(pubkey: str, state: State) -> State:
    """Without a node that had a place, and what was held for it alone."""
    ads = state.ads
    for _, beat in state.beats[pubkey]:
        ads = ads.without(beat.ad)
    return replace(
        state,
        beats=state.beats.without(pubkey),
        ads=ads,
        ranks=state.ranks.without(pubkey),
        order=_cut(state.order, state.ranks[pubkey]),
        crowded_out=state.crowded_out + 1,
    )


def _named_bonds(provider: str, state: State) -> set[str]:
    ads = (state.ads.get(beat.ad) for _, beat in state.beats.get(provider, ()))
    return {pair[1].bond for pair in ads if pair is not None and pair[1].bond is not None}


def _counts(statement: BondStatement, state: State) -> bool:
    """Whether a listed holder says it, and of a bond that the next snapshot counts."""
    lasts_to_ms = state.committee.close_ms(state.epoch + VALID_EPOCHS)
    return statement.holder in state.committee.bond_holders and statement.expires_at_s * 1000 >= lasts_to_ms


def _units(statement: BondStatement, state: State) -> int:
    return statement.amount_msat // state.committee.bond_unit_msat


def _newest(beats: _Beats) -> _Beats:
    ordered = sorted(beats, key=lambda pair: (-pair[1].epoch, -pair[0].created_at, pair[0].id))
    return tuple(ordered[:BEATS_PER_NODE])


def _since(oldest: int, beats: _Beats) -> _Beats:
    return tuple(pair for pair in beats if pair[1].epoch >= oldest)
