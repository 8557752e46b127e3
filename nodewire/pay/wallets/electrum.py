"""A wallet of an Electrum daemon, over its JSON-RPC.

https://electrum.readthedocs.io/en/latest/jsonrpc.html

Electrum has no invoices that commit to the hash of a description, and tries again what has failed. So its plugin of
`plugin/electrum` must be there: its commands, nodewire_NAME, are what is asked.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

import aiohttp
import orjson

from nodewire.errors import BadConfig, BadInput, LinkLost, NodewireError, NotAllowed, NotFound, TimedOut, Unsupported
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import ABILITIES, Direction, Receipt, State, Transfer, WalletInfo
from nodewire.pay.wallets import history, rest
from nodewire.pay.wallets.history import ListedInvoice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodewire.pay.lightning.invoices import Invoice

MAX_ANSWER_BYTES = 4_000_000
VERSION = 1
"""Of the plugin's commands."""
_MOST_MSAT = 100_000_000_000  # 1 BTC
_HEX32 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NODE = re.compile(r"0[23][0-9a-f]{64}", re.ASCII)
_REFUSALS: dict[str, type[NodewireError]] = {"not-found": NotFound, "not-allowed": NotAllowed, "bad-input": BadInput}
_USER_FACING = 1
"""The code of Electrum's errors that are meant for its user."""
_NOT_LOADED = "wallet not loaded"
"""What a daemon says that was started again, until its wallet is opened."""


class ElectrumWallet:
    """The wallet that the Electrum daemon at `url` has open. `user` and `password` are its rpcuser and rpcpassword."""

    networks: ClassVar[tuple[str, ...]] = ("bc", "tb", "tbs", "bcrt")

    def __init__(self, url: str, user: str, password: str, *, timeout_s: float = 10.0) -> None:
        self._url = url
        self._user, self._password = user, password
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._known: WalletInfo | None = None

    @classmethod
    def from_file(cls, url: str, token_file: Path | None) -> Self:
        """The wallet of the daemon whose "rpcuser:rpcpassword" is in `token_file`. Raises BadConfig: it has none."""
        if token_file is None:
            raise BadConfig("wallet.token_file", 'name the file with "rpcuser:rpcpassword" of the Electrum daemon')
        try:
            user, found, password = token_file.read_text().strip().partition(":")
        except OSError as error:
            reason = f'cannot be read ({error.strerror}); put "rpcuser:rpcpassword" of the Electrum daemon there'
            raise BadConfig(str(token_file), reason) from error
        except UnicodeDecodeError as error:
            raise BadConfig(str(token_file), "is no text") from error
        if not (user and found and password):
            raise BadConfig(str(token_file), 'does not have "rpcuser:rpcpassword" of the Electrum daemon')
        return cls(url, user, password)

    @classmethod
    async def open_account(cls, url: str, name: str, opening_msat: int = 0) -> tuple[Self, str]:
        raise NotAllowed("wallet", "make the wallet in Electrum itself, and put its rpcuser:rpcpassword into a file")

    async def info(self) -> WalletInfo:
        if self._known is None:
            said = await self._ask("info")
            node, network = str(said.get("node")), str(said.get("network"))
            if said.get("version") != VERSION:
                raise Unsupported("wallet", f"Electrum's plugin is of version {said.get('version')!r}, not {VERSION}")
            if _NODE.fullmatch(node) is None or network not in self.networks:
                raise Unsupported("network", f"the wallet is of {network[:40]!r}, not of {', '.join(self.networks)}")
            least_msat = max(1, _whole(said, "least_msat"))
            self._known = WalletInfo(f"electrum:{node}", network, 1, least_msat, _MOST_MSAT, ABILITIES)
        return self._known

    async def balance_msat(self) -> int:
        return _whole(await self._ask("balance"), "msat")

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        await self._check_asked(amount_msat, expiry_s)
        asked = {"amount_msat": amount_msat, "description": description, "expiry_s": expiry_s}
        return await self._made("invoice", asked)

    async def hold_invoice(self, amount_msat: int, *, payment_hash: str, description: str, expiry_s: int) -> Invoice:
        await self._check_asked(amount_msat, expiry_s)
        _check_hex("payment_hash", payment_hash)
        asked = {"amount_msat": amount_msat, "description": description, "expiry_s": expiry_s}
        return await self._made("hold_invoice", {**asked, "payment_hash": payment_hash})

    async def settle_hold(self, preimage: str) -> None:
        _check_hex("preimage", preimage)
        await self._ask("settle_hold", {"preimage": preimage, "wait_s": self._timeout_s}, wait_s=self._timeout_s)

    async def cancel_hold(self, payment_hash: str) -> None:
        _check_hex("payment_hash", payment_hash)
        asked = {"payment_hash": payment_hash, "wait_s": self._timeout_s}
        await self._ask("cancel_hold", asked, wait_s=self._timeout_s)

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        invoice = invoices.decode(bolt11, network=(await self.info()).network)
        asked = {"bolt11": invoice.bolt11, "max_fee_msat": max_fee_msat, "wait_s": timeout_s}
        return _transfer(await self._ask("pay", asked, wait_s=timeout_s), "out", invoice.payment_hash)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        _check_hex("payment_hash", payment_hash)
        said = await self._ask("lookup", {"payment_hash": payment_hash, "direction": direction})
        return _transfer(said, direction, payment_hash)

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        async for came in history.settled((await self.info()).id, after, self._listed):
            yield came

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _check_asked(self, amount_msat: int, expiry_s: int) -> None:
        info = await self.info()
        if not info.least_msat <= amount_msat <= info.most_msat:
            raise BadInput("amount_msat", f"{amount_msat}, from {info.least_msat} to {info.most_msat}")
        if not 0 < expiry_s <= invoices.MAX_EXPIRY_S:
            raise BadInput("expiry_s", f"{expiry_s}, at most a year")

    async def _made(self, method: str, asked: dict[str, Any]) -> Invoice:
        """An invoice that the plugin makes. Raises BadInvoice: it is not what was asked for."""
        made = (await self._ask(method, asked)).get("bolt11")
        if not isinstance(made, str):
            raise LinkLost("wallet", "Electrum made no invoice")
        invoice = invoices.decode(made)
        digest = hashlib.sha256(asked["description"].encode()).hexdigest()
        made_s = float(invoice.created_at_s)  # a short one may have expired on its way
        invoices.check(invoice, amount_msat=asked["amount_msat"], now_s=made_s, description_hash=digest)
        return invoice

    async def _listed(self, since_s: int) -> list[ListedInvoice]:
        rows = (await self._ask("invoices", {"since_s": since_s})).get("invoices")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise LinkLost("wallet", "its list of invoices is none")
        return [
            ListedInvoice(_transfer(row, "in"), _whole(row, "created_at"), _whole(row, "expires_at")) for row in rows
        ]

    async def _ask(self, method: str, params: dict[str, Any] | None = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """What a command of the plugin answers.

        Raises:
            LinkLost, TimedOut: no answer, or none of Electrum's own.
            NotFound, NotAllowed, BadInput: its refusal, in its words.

        """
        if self._session is None:
            secret = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
            once = rest.connector(self._url, force_close=True)  # one that is kept does not outlive the daemon
            self._session = aiohttp.ClientSession(connector=once, headers={"Authorization": f"Basic {secret}"})
        body = {"id": 1, "jsonrpc": "2.0", "method": f"nodewire_{method}", "params": params or {}}
        limit = aiohttp.ClientTimeout(total=self._timeout_s + wait_s)
        try:
            async with self._session.post(self._url, json=body, timeout=limit, allow_redirects=False) as response:
                raw = bytearray()
                async for piece in response.content.iter_chunked(65_536):
                    raw += piece
                    if len(raw) > MAX_ANSWER_BYTES:
                        raise LinkLost("wallet", f"its answer is over {MAX_ANSWER_BYTES} bytes")
        except TimeoutError as error:
            raise TimedOut("wallet", f"no answer from {self._url}") from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise BadInput("wallet", f"{self._url!r} is no URL such as http://127.0.0.1:7777") from error
        except aiohttp.ClientError as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise LinkLost("wallet", f"{self._url}: {reason}") from error
        return _result(response.status, bytes(raw))


def _result(status: int, raw: bytes) -> dict[str, Any]:
    """The result in an answer. Raises as `ElectrumWallet._ask`."""
    if status in (401, 403):
        raise NotAllowed("wallet", "Electrum does not know the rpcuser and rpcpassword of wallet.token_file")
    if status == 500 and raw == b"Invalid Request":  # so it answers a command that it does not have
        raise NotAllowed("wallet", "Electrum does not have nodewire's plugin: install and enable it (plugin/electrum)")
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise LinkLost("wallet", f"answered {status} and no JSON") from error
    if status != 200 or not isinstance(answer, dict):
        raise LinkLost("wallet", f"answered {status} and nothing of its own")
    refused, result = answer.get("error"), answer.get("result")
    if isinstance(refused, dict):
        said = str(refused.get("message", ""))[:200]
        if said == _NOT_LOADED:
            raise LinkLost("wallet", "Electrum has no wallet open: electrum load_wallet opens it")
        kind: type[NodewireError] = NotAllowed if refused.get("code") == _USER_FACING else LinkLost
        raise kind("wallet", f"Electrum refuses: {said}")
    if not isinstance(result, dict):
        raise LinkLost("wallet", "its answer has no result")
    if "refused" in result:
        raise _REFUSALS.get(str(result["refused"]), LinkLost)("wallet", str(result.get("reason", ""))[:200])
    return result


def _transfer(row: dict[str, Any], direction: Direction, payment_hash: str | None = None) -> Transfer:
    """A payment of the plugin's record. Raises LinkLost: it is none, or another one than was asked for."""
    found, state, preimage = row.get("payment_hash"), row.get("state"), row.get("preimage")
    if not isinstance(found, str) or state not in get_args(State) or payment_hash not in (None, found):
        raise LinkLost("wallet", "a payment of its is malformed, or another one")
    settled = state == "settled"
    return Transfer(
        payment_hash=found,
        direction=direction,
        state=state,  # type: ignore[arg-type]  # it is of `State`
        amount_msat=_whole(row, "amount_msat"),
        fee_msat=_whole(row, "fee_msat"),
        preimage=preimage if settled and isinstance(preimage, str) else None,
        at_s=_whole(row, "at_s"),
        reason=str(row.get("reason", ""))[:200] if state == "failed" else "",
    )


def _whole(said: dict[str, Any], name: str) -> int:
    value = said.get(name)
    if type(value) is not int or value < 0:
        raise LinkLost("wallet", f"its {name} is no whole number")
    return value


def _check_hex(field: str, text: str) -> None:
    if _HEX32.fullmatch(text) is None:
        raise BadInput(field, "not 64 lowercase hex digits")
