"""A wallet that is a Lexe node, over Lexe's own client (lexe-sdk): the owner holds its keys and runs nothing.

https://python.lexe.tech

It pays and is not paid: its invoices commit to no hash of a description, which zaps need. It counts in whole satoshis
and has no say in fees. Told the same invoice again, it answers with the first payment, also one that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from nodewire.core.extras import how_to_install
from nodewire.errors import BadConfig, LinkLost, NotAllowed, NotFound
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Ability, Direction, Receipt, State, Transfer, WalletInfo
from nodewire.pay.wallets import rest
from nodewire.pay.wallets.attempts import Attempts
from nodewire.pay.wallets.rest import Access

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from nodewire.pay.lightning.invoices import Invoice

_SAT_MSAT = 1_000
_MOST_MSAT = 100_000_000_000  # 1 BTC
_RECORD_S = 10.0
"""How long its record may take to have a payment that it was told to make."""
_STATES: dict[str, State] = {"PENDING": "pending", "COMPLETED": "settled", "FAILED": "failed"}
_SCOPES: dict[str, frozenset[Ability]] = {
    "full": frozenset({"balance", "pay", "lookup-out"}),
    "read": frozenset({"balance", "lookup-out"}),
    "read_info": frozenset({"balance"}),
    "read_payments": frozenset({"lookup-out"}),
    "spend": frozenset({"pay"}),
}
_NO_INVOICES = "invoices of Lexe commit to no hash of a description: be paid into another wallet"
_ENVIRONMENTS = {"lexe:mainnet": "bc", "lexe:testnet3": "tb"}


class LexeWallet:
    """The node that `node` asks, an AsyncLexeWallet of lexe-sdk. `prepare` is awaited once, before all else."""

    networks: ClassVar[tuple[str, ...]] = ("bc", "tb")

    def __init__(self, node: Any, network: str, prepare: Callable[[], Awaitable[object]]) -> None:
        self._node = node
        self._network = network
        self._prepare: Callable[[], Awaitable[object]] | None = prepare
        self._attempts = Attempts(_RECORD_S)
        self._known: WalletInfo | None = None

    @classmethod
    def from_file(cls, url: str, token_file: Path | None) -> Self:
        """The node whose client credentials are in `token_file`. `url` names its network: "lexe:mainnet".

        Raises:
            BadConfig: lexe-sdk is not installed, the file has no credentials, or there is no such network.

        """
        if url not in _ENVIRONMENTS:
            raise BadConfig("wallet.url", f"{url[:100]!r} is not one of {', '.join(_ENVIRONMENTS)}")
        secret = Access.read(token_file, "client credentials of the Lexe wallet").secret
        try:
            import lexe
        except ImportError as error:
            raise BadConfig("wallet.kind", f"lexe-sdk is not installed: {how_to_install('lexe')}") from error
        try:
            credentials = lexe.Credentials.from_client_credentials(lexe.ClientCredentials.from_string(secret))
            environment = getattr(lexe.WalletConfig, url.removeprefix("lexe:"))()
            node = lexe.AsyncLexeWallet.without_db(environment, credentials)
        except lexe.FfiError:
            # Its words may show a part of the secret.
            raise BadConfig(
                str(token_file), "it has no client credentials of that network: copy them whole from Lexe"
            ) from None
        return cls(node, _ENVIRONMENTS[url], lambda: node.provision(credentials))

    @classmethod
    async def open_account(cls, url: str, name: str, opening_msat: int = 0) -> tuple[Self, str]:
        raise NotAllowed("wallet", "make client credentials in Lexe itself, and put them into a file")

    async def info(self) -> WalletInfo:
        if self._known is None:
            client = await self._asked(lambda: self._node.client_info())
            scopes = [_SCOPES.get(str(one).lower().replace("-", "_"), frozenset[Ability]()) for one in client.scopes]
            can = frozenset[Ability]().union(*scopes)
            if "lookup-out" not in can:
                can -= {"pay"}  # nothing would tell what was paid before
            key = rest.node_key({"node_pk": (await self._asked(lambda: self._node.node_info())).node_pk}, "node_pk")
            self._known = WalletInfo(f"lexe:{key}", self._network, _SAT_MSAT, _SAT_MSAT, _MOST_MSAT, can)
        return self._known

    async def balance_msat(self) -> int:
        said = await self._asked(lambda: self._node.node_info())
        return _sat(said, "lightning_sendable_balance_sats") * _SAT_MSAT

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        _lacks_invoices()

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        info = await self.info()
        invoice = invoices.decode(bolt11, network=info.network)
        if "pay" not in info.abilities:
            raise NotAllowed("wallet", "its credentials need the scopes SPEND and READ_PAYMENTS to pay")

        async def tell() -> None:
            await self._asked(lambda: self._node.pay_invoice(invoice.bolt11))

        return await self._attempts.pay(invoice, self.lookup, tell, timeout_s)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        rest.check_hex32("payment_hash", payment_hash)
        if direction == "in":
            raise NotFound("payment_hash", _NO_INVOICES)
        found = await self._asked(lambda: self._node.get_payment_by_id(f"ln_{payment_hash}"))
        if found is None or found.direction.name != "OUTBOUND":
            raise NotFound("payment_hash", "the node's record has no such payment")
        if found.hash != payment_hash:
            raise LinkLost("wallet", "it tells of another payment than was asked for")
        return _outgoing(found)

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        never: tuple[Receipt, ...] = ()
        for one in never:
            yield one
        _lacks_invoices()

    async def close(self) -> None:
        await self._attempts.close()

    async def _asked(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """What the node answers. Raises LinkLost: it, or Lexe's client, raises an error, in its words."""
        try:
            if self._prepare is not None:
                await self._prepare()
                self._prepare = None
            return await call()
        except Exception as error:
            # The client has one error for all, which it brings along.
            if type(error).__name__ != "FfiError":
                raise
            raise LinkLost("wallet", f"Lexe: {error}"[:300]) from error


def _lacks_invoices() -> NoReturn:
    raise NotAllowed("wallet", _NO_INVOICES)


def _outgoing(said: Any) -> Transfer:
    """A payment of Lexe's. Its amounts are cut to satoshis, its invoice has its own."""
    name = said.status.name
    if name not in _STATES:
        raise LinkLost("wallet", f"its status of a payment is {str(name)[:40]!r}")
    state, payment_hash = _STATES[name], str(said.hash)
    if said.invoice is None:
        raise LinkLost("wallet", "its payment has no invoice")
    ended_ms = said.finalized_at_ms if said.finalized_at_ms is not None else said.created_at_ms
    return Transfer(
        payment_hash=payment_hash,
        direction="out",
        state=state,
        amount_msat=invoices.decode(said.invoice.string).amount_msat,
        fee_msat=_sat(said, "fees_sats") * _SAT_MSAT if state == "settled" else 0,
        preimage=rest.hex32({"preimage": said.preimage}, "preimage") if state == "settled" else None,
        at_s=int(ended_ms) // 1_000,
        reason=f"Lexe: {said.status_msg}"[:200] if state == "failed" else "",
    )


def _sat(said: Any, name: str) -> int:
    return rest.whole({name: getattr(said, name, None)}, name)
