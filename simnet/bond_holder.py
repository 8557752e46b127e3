"""The simulated network as bond holder and treasurer, over HTTP (`simnet.holder_http`)."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar

from nodewire.errors import LinkLost
from nodewire.nostr import event as events
from nodewire.pay.bond.bond_holder import HeldBond, Holder, VerdictSettlement
from nodewire.pay.bond.treasury.client import TreasuryClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.protocol.committee.committee import Committee
    from simnet.wallet import SimWallet

_T = TypeVar("_T")


class SimBondHolder(TreasuryClient):
    """Asks as the account of `wallet`, which stays the caller's to close; payouts are paid into it."""

    def __init__(self, wallet: SimWallet) -> None:
        super().__init__(wallet.ask, wallet)
        self._wallet = wallet

    async def holder(self) -> Holder:
        return _read(Holder, await self._wallet.ask("GET", "/v1/holder"))

    async def bond(self, provider: str) -> HeldBond:
        return _bond(await self._wallet.ask("GET", f"/v1/bonds/{provider}"))

    async def lock(self, keys: Keys, amount_msat: int, until_s: int, *, key: str) -> HeldBond:
        body = {"key": key, "amount_msat": amount_msat, "until_s": until_s}
        return _bond(await self._wallet.ask("POST", "/v1/bonds", body, keys=keys))

    async def top_up(self, keys: Keys, amount_msat: int, until_s: int, *, key: str) -> HeldBond:
        body = {"key": key, "amount_msat": amount_msat, "until_s": until_s}
        return _bond(await self._wallet.ask("POST", "/v1/bonds/raise", body, keys=keys))

    async def statement(self, keys: Keys) -> Event:
        return events.parse(await self._wallet.ask("POST", "/v1/bonds/statement", {}, keys=keys))

    async def release(self, keys: Keys) -> HeldBond:
        return _bond(await self._wallet.ask("POST", "/v1/bonds/release", {}, keys=keys))

    async def present(self, certificate: Event, request: Event) -> VerdictSettlement:
        body = {"certificate": certificate.as_dict(), "request": request.as_dict()}
        return _settled(await self._wallet.ask("POST", "/v1/verdicts", body))

    async def case(self, case: str) -> VerdictSettlement:
        return _settled(await self._wallet.ask("GET", f"/v1/cases/{case}"))

    async def cosign(self, keys: Keys, committee: Committee, known: Callable[[str], frozenset[str]]) -> int:
        return 0  # it has the coins itself

    async def close(self) -> None:
        return


def _bond(said: dict[str, Any]) -> HeldBond:
    return _read(HeldBond, {**said, "cases": tuple(said.get("cases", ())), "id": said.get("bond")})


def _settled(said: dict[str, Any]) -> VerdictSettlement:
    return _read(VerdictSettlement, said)


def _read(cls: type[_T], said: dict[str, Any]) -> _T:
    """The dataclass of what the service said; what it says besides is ignored. Raises LinkLost: no holder answered."""
    try:
        named = [field for field in fields(cls) if field.name in said or field.default is MISSING]  # type: ignore[arg-type]
        return cls(**{field.name: said[field.name] for field in named})
    except KeyError as error:
        raise LinkLost("holder", f"its answer lacks {error}") from error
