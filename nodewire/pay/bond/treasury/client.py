"""The treasury's part of the port of bonds (`pay.bond.bond_holder`), over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nodewire.errors import LinkLost, NotFound
from nodewire.pay.bond.bond_holder import ClaimPayment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.nostr.keys import Keys
    from nodewire.pay.lightning.wallet import Wallet
    from nodewire.protocol.job.share_statement import ShareStatement

_INVOICE_S = 3_600


class Ask(Protocol):
    """Asks the treasury's service; `keys` sign the request (NIP-98)."""

    async def __call__(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, keys: Keys | None = None
    ) -> dict[str, Any]: ...


class TreasuryClient:
    """Payouts are paid into `wallet`, which stays the caller's to close."""

    def __init__(self, ask: Ask, wallet: Wallet) -> None:
        self._ask_treasury, self._payee = ask, wallet

    async def book_shares(self, said: ShareStatement) -> int:
        return _msat(await self._ask_treasury("POST", "/v1/shares", said.document()), "ahead_msat")

    async def treasury(self, request: str) -> tuple[int, int]:
        said = await self._ask_treasury("GET", f"/v1/treasury/{request}")
        return _msat(said, "received_msat"), _msat(said, "left_msat")

    async def share_msat(self, request: str, customer: str, chunk: int, before_ms: int) -> int:
        path = f"/v1/treasury/{request}/shares/{customer}/{chunk}?before_ms={before_ms}"
        return _msat(await self._ask_treasury("GET", path), "came_msat")

    async def claim(self, keys: Keys, case: str) -> int:
        return _msat(await self._ask_treasury("POST", "/v1/claims", {"case": case}, keys=keys), "amount_msat")

    async def collect(self, keys: Keys) -> ClaimPayment | None:
        try:
            said = await self._ask_treasury("GET", f"/v1/dues/{keys.public}")
        except NotFound:  # a holder without a treasury
            return None
        payable_msat = _msat(said, "payable_msat")
        if payable_msat <= 0:
            return None
        info = await self._payee.info()
        amount_msat = min(payable_msat, info.most_msat)
        amount_msat -= amount_msat % info.unit_msat
        if amount_msat < max(1, info.least_msat):
            return None
        invoice = await self._payee.invoice(amount_msat, description="a verifier's pay", expiry_s=_INVOICE_S)
        paid = await self._ask_treasury("POST", "/v1/payouts", {"bolt11": invoice.bolt11}, keys=keys)
        return ClaimPayment(_msat(paid, "amount_msat"), invoice.payment_hash, paid.get("is_paid") is True)


def _msat(said: Mapping[str, Any], name: str) -> int:
    value = said.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise LinkLost("holder", f"its answer lacks {name}")
    return value
