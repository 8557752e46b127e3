"""A provider's bond: locked before it is announced, its statement renewed before it expires."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nodewire.errors import NotFound, PaymentFailed
from nodewire.pay.bond.bond_holder import BondHolder, check_locked, ensure_bond
from nodewire.protocol.market import bond

if TYPE_CHECKING:
    from nodewire.config import BondConfig
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.protocol.market.bond import BondStatement

_DAY_S = 86_400


async def check_bond(holder: BondHolder, public: str, wanted_msat: int, balance_msat: int) -> None:
    """Check that a bond of `wanted_msat` is there, or can be locked out of `balance_msat`.

    Raises:
        NotAllowed: the bond was asked back, or was slashed.
        PaymentFailed: the wallet has too little.

    """
    if not wanted_msat:
        return
    try:
        bond = await holder.bond(public)
    except NotFound:
        bond = None
    check_locked(bond)
    held_msat = bond.remainder_msat if bond is not None and bond.state == "locked" else 0
    if (lacks_msat := wanted_msat - held_msat) > balance_msat:
        raise PaymentFailed(
            "bond",
            f"{lacks_msat} msat are to be locked, and the wallet has {balance_msat} msat: pay into it, or lower"
            " [bond] amount_msat",
        )


class BondKeeper:
    """Asks `holder` for the bond that `config` wants."""

    def __init__(self, keys: Keys, holder: BondHolder, config: BondConfig) -> None:
        self.amount_msat = config.amount_msat
        self._keys = keys
        self._holder = holder
        self._days = config.days
        self.held: BondStatement | None = None
        """What the holder said last."""
        self._renew_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the statement that was asked for last is past half of its life."""
        return self.amount_msat > 0 and time.time() >= self._renew_s

    async def stated(self) -> Event:
        """The statement (kind 8858) to publish and to name in the ad. Raises as `ensure_bond`."""
        now_s = int(time.time())
        until_s = (now_s // _DAY_S + 1 + self._days) * _DAY_S  # the same all day: asked again, nothing is prolonged
        event = await ensure_bond(self._holder, self._keys, self.amount_msat, until_s)
        self.held = bond.parse(event)
        self._renew_s = now_s + max(1.0, (self.held.expires_at_s - now_s) / 2)
        return event
