"""Where a node is on the network: Vivaldi with height, learned from round trips to peers that say where they are.

Pure: the same calls end at the same place. Each measured round trip is a spring between two nodes, which moves this
one a little (Dabek et al., SIGCOMM 2004), the less the surer it is and the less sure the peer. Added to that:

- A peer is believed no more than it has been found right: its error counts as what it claims, or as what was seen of
  it, whichever is worse. So liars lose their weight by lying. No step is longer than the round trip, or than STEP_US.
- Springs alone leave some nodes on the wrong side of others, where every small step makes it worse. So now and then
  a node looks whether half of its peers would be much nearer to what was measured if it stood elsewhere; less than
  half cannot call it away, whatever they claim.
- A slight gravity keeps all nodes together around the origin (Ledlie, Gardner, Seltzer, NSDI 2007).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadFrame
from nodewire.protocol.market.coordinates import MOST_US, Coordinates

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP_US = 10_000.0
"""The most that one measurement moves a node."""
MOST_ERROR_PPM = 2_000_000
_MOVES = 0.25
"""The paper's c_c and c_e."""
_LEAST_ERROR, _LEAST_PEER_ERROR = 0.05, 0.1
_LEAST_HEIGHT_US = 100.0
_SMALL_RTT_US = 1_000.0
"""Errors of what is shorter are taken relative to this."""
_GRAVITY_US, _FAR_US = 100.0, 250_000.0
_LOOKS = 96
_LOOK_PEERS = 32
_LEAST_PEERS = 4
_BETTER = 0.8
_LEAPT_ERROR = 0.3


@dataclass(frozen=True, slots=True)
class Claim:
    """What a node says: where it is, and by how much its predictions are wrong, relative to what is measured."""

    at: Coordinates
    error_ppm: int

    def document(self) -> dict[str, Any]:
        return {"at": list(self.at), "error": self.error_ppm}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Claim:
        """The claim in a control document. Raises BadFrame."""
        at, error_ppm = document.get("at"), document.get("error")
        if (
            not isinstance(at, list)
            or len(at) != 3
            or not all(type(one) is int and -MOST_US <= one <= MOST_US for one in at)
            or at[2] < 0
        ):
            raise BadFrame("at", "not coordinates")
        if type(error_ppm) is not int or not 0 <= error_ppm <= MOST_ERROR_PPM:
            raise BadFrame("error", "not an error in ppm")
        return cls((at[0], at[1], at[2]), error_ppm)


@dataclass(frozen=True, slots=True)
class Place:
    """Coordinates in microseconds, and the node's own relative error, which falls as it learns."""

    x_us: float
    y_us: float
    height_us: float
    error: float = 1.0

    @classmethod
    def from_claim(cls, claim: Claim) -> Place:
        """The place that was once claimed."""
        x, y, height = claim.at
        return cls(x, y, max(float(height), _LEAST_HEIGHT_US), max(claim.error_ppm / 1e6, _LEAST_ERROR))

    @property
    def claim(self) -> Claim:
        at = (_bounded(self.x_us), _bounded(self.y_us), max(0, _bounded(self.height_us)))
        return Claim(at, min(round(self.error * 1e6), MOST_ERROR_PPM))

    def rtt_us(self, other: Coordinates) -> float:
        x, y, height = other
        return math.hypot(self.x_us - x, self.y_us - y) + self.height_us + height


@dataclass(slots=True)
class _Peer:
    claim: Claim
    rtt_us: float = 0.0
    """0: not measured yet."""
    wrong: float = 0.0
    """How far from what was measured it has been, lately, relative to that."""


class Vivaldi:
    """One node's.

    `update` and `measured` are called at the caller's own pace: no peer makes itself count more often.
    """

    def __init__(self, public: str, place: Place | None = None) -> None:
        """`place`: where it was when it was last known; else it begins near the origin, by its public key."""
        self._chance = random.Random(public)  # noqa: S311 - a place to begin at
        self.place = place or Place(self._chance.uniform(-100, 100), self._chance.uniform(-100, 100), _LEAST_HEIGHT_US)
        self._peers: dict[str, _Peer] = {}
        self._until_look = 0

    def update(self, peer: str, claim: Claim) -> None:
        """A peer says where it is."""
        if (known := self._peers.get(peer)) is not None:
            known.claim = claim
        else:
            self._peers[peer] = _Peer(claim)

    def forget(self, peer: str) -> None:
        self._peers.pop(peer, None)

    def measured(self, peer: str, rtt_us: int) -> None:
        """A round trip to a peer; without its claim it says nothing."""
        known = self._peers.get(peer)
        if known is None or not 0 < rtt_us <= MOST_US:
            return
        wrong = abs(self.place.rtt_us(known.claim.at) - rtt_us) / max(rtt_us, _SMALL_RTT_US)
        known.wrong = (known.wrong + wrong) / 2 if known.rtt_us else wrong
        known.rtt_us = float(rtt_us)
        self.place = self._pulled(self._stepped(known, wrong))
        self._until_look -= 1
        if self._until_look < 0:
            self._until_look = 2 * len(self._peers)
            self._look_around()

    def _stepped(self, peer: _Peer, wrong: float) -> Place:
        """The place after the paper's step."""
        place, (x, y, height) = self.place, peer.claim.at
        doubt = max(peer.claim.error_ppm / 1e6, _LEAST_PEER_ERROR, peer.wrong, 2 * peer.wrong**2)
        weight = place.error / (place.error + doubt)
        share = _MOVES * weight
        error = min(max(wrong * share + place.error * (1 - share), _LEAST_ERROR), MOST_ERROR_PPM / 1e6)
        predicted_us = place.rtt_us(peer.claim.at)
        longest_us = min(STEP_US, peer.rtt_us)
        step_us = min(max(share * (peer.rtt_us - predicted_us), -longest_us), longest_us)
        dx, dy = place.x_us - x, place.y_us - y
        if math.hypot(dx, dy) < 1:  # on top of each other: any direction will do
            angle = self._chance.uniform(0, math.tau)
            dx, dy = math.cos(angle), math.sin(angle)
        scale = step_us / max(predicted_us, 1.0)
        height_us = max(place.height_us + scale * (place.height_us + height), _LEAST_HEIGHT_US)
        return Place(place.x_us + scale * dx, place.y_us + scale * dy, height_us, error)

    def _pulled(self, place: Place) -> Place:
        far_us = math.hypot(place.x_us, place.y_us)
        left = 1 - min(_GRAVITY_US * far_us / _FAR_US**2, 1.0)
        return replace(place, x_us=place.x_us * left, y_us=place.y_us * left)

    def _look_around(self) -> None:
        """Leap to a place that most peers' round trips fit clearly better, if one is found.

        Tried are places on circles around peers, as far from them as was measured.
        """
        peers = [peer for peer in self._peers.values() if peer.rtt_us]
        if len(peers) < _LEAST_PEERS:
            return
        peers = self._chance.sample(peers, min(len(peers), _LOOK_PEERS))
        best, least = self.place, _misfit(self.place, peers) * _BETTER - 0.01
        for _ in range(_LOOKS):
            peer, angle = self._chance.choice(peers), self._chance.uniform(0, math.tau)
            x, y, peer_height = peer.claim.at
            here_us = self.place.height_us
            height_us = max(self._chance.choice((here_us, here_us / 4, peer.rtt_us / 8)), _LEAST_HEIGHT_US)
            away_us = max(0.0, peer.rtt_us - peer_height - height_us)
            tried = Place(x + away_us * math.cos(angle), y + away_us * math.sin(angle), height_us)
            if (misfit := _misfit(tried, peers)) < least:
                best, least = tried, misfit
        if best is not self.place:
            self.place = replace(best, error=max(self.place.error, _LEAPT_ERROR))


def _misfit(place: Place, peers: list[_Peer]) -> float:
    """The mean relative error towards that half of the peers that a place fits best."""
    wrong = sorted(abs(place.rtt_us(p.claim.at) - p.rtt_us) / max(p.rtt_us, _SMALL_RTT_US) for p in peers)
    kept = wrong[: -(-len(wrong) // 2)]
    return sum(kept) / len(kept)


def _bounded(value: float) -> int:
    return min(max(round(value), -MOST_US), MOST_US)
