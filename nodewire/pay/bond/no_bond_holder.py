"""The bond holder of a wallet whose kind has none: it refuses everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from nodewire.errors import BadConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.bond_holder import ClaimPayment, HeldBond, Holder, VerdictSettlement
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.share_statement import ShareStatement


class NoBondHolder:
    """A BondHolder that knows no bond. Every method raises BadConfig."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def holder(self) -> Holder:
        self._refuse()

    async def bond(self, provider: str) -> HeldBond:
        self._refuse()

    async def lock(self, keys: Keys, amount_msat: int, until_s: int, *, key: str) -> HeldBond:
        self._refuse()

    async def top_up(self, keys: Keys, amount_msat: int, until_s: int, *, key: str) -> HeldBond:
        self._refuse()

    async def statement(self, keys: Keys) -> Event:
        self._refuse()

    async def release(self, keys: Keys) -> HeldBond:
        self._refuse()

    async def present(self, certificate: Event, request: Event) -> VerdictSettlement:
        self._refuse()

    async def case(self, case: str) -> VerdictSettlement:
        self._refuse()

    async def claim(self, keys: Keys, case: str) -> int:
        self._refuse()

    async def cosign(self, keys: Keys, committee: Committee, known: Callable[[str], frozenset[str]]) -> int:
        self._refuse()

    async def collect(self, keys: Keys) -> ClaimPayment | None:
        self._refuse()

    async def book_shares(self, said: ShareStatement) -> int:
        self._refuse()

    async def treasury(self, request: str) -> tuple[int, int]:
        self._refuse()

    async def share_msat(self, request: str, customer: str, chunk: int, before_ms: int) -> int:
        self._refuse()

    async def close(self) -> None:
        return

    def _refuse(self) -> NoReturn:
        raise BadConfig("wallet.kind", f"wallets of kind {self._kind!r} have no bond holder")
