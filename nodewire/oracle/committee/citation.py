"""The inventories that an epoch's body cites, and what follows from them: `protocol.market.snapshot.listed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.protocol.market import snapshot as _snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nodewire.oracle.committee.derivation import Key
    from nodewire.oracle.committee.state import Round
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.committee.oracle_round import Inventory
    from nodewire.protocol.committee.reputation import ReputationVerdict


@dataclass(frozen=True, slots=True)
class Citation:
    """`inventories` by event id."""

    inventories: Mapping[str, Inventory]
    is_crowded: bool
    leader_inventory: Inventory | None
    """The one of the round's leader, if it is among them."""

    @classmethod
    def build(cls, ids: Collection[str], is_crowded: bool, round_: Round, leader: str) -> Citation:
        found = {id_: one for id_ in ids if (one := round_.inventories[id_].inventory) is not None}
        leader_inventory = next((one for id_, one in found.items() if round_.inventories[id_].oracle == leader), None)
        return cls(found, is_crowded, leader_inventory)

    def listed(self, committee: Committee) -> tuple[list[str], list[str]]:
        """The beats and the commitments that count."""
        return _snapshot.listed(
            committee, list(self.inventories.values()), self.leader_inventory if self.is_crowded else None
        )

    def bonded(self, committee: Committee) -> list[str]:
        """The counted beats that f+1 inventories list as bonded nodes'."""
        return _snapshot.popular(committee, (one.bonded for one in self.inventories.values()))

    def judged(self, committee: Committee) -> list[ReputationVerdict]:
        """The verdicts that count and are due."""
        return _snapshot.judged(committee, list(self.inventories.values()))

    def key(self, previous: str) -> Key:
        """The key of the derivation from this citation and the body `previous`."""
        return (*sorted(self.inventories), previous, *(("crowded",) if self.is_crowded else ()))
