"""A wallet on the simulated Lightning network (`simnet`), over HTTP."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

import aiohttp
import orjson

from nodewire.errors import BadConfig, BadInput, LinkLost, NotAllowed, TimedOut, from_dict
from nodewire.nostr.nips import nip98
from nodewire.pay.accounts.zaps import description_hash
from nodewire.pay.lightning import cursor, invoices
from nodewire.pay.lightning.wallet import ABILITIES, Direction, Receipt, Transfer, WalletInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodewire.nostr.keys import Keys
    from nodewire.pay.lightning.invoices import Invoice

MAX_ANSWER_BYTES = 2_000_000
_HEX32 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WAIT_S = 30
_OTHER = "is that a simulated network, and does it hold bonds (`--key`, `--committee`), if it is asked for them?"
_PAGE = 200


class SimWallet:
    """One account's wallet. `url` is the service's, `token` the account's bearer token."""

    networks: ClassVar[tuple[str, ...]] = (invoices.REGTEST,)
    """Its money is play money: it is refused wherever another network is meant."""

    def __init__(self, url: str, token: str, *, timeout_s: float = 10.0) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._token_file: Path | None = None
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    async def open_account(cls, url: str, name: str, opening_msat: int = 0) -> tuple[Self, str]:
        """A wallet on a new account, and its token (to be kept: it is the account).

        Raises:
            NotAllowed: more than the service's faucet gives.

        """
        stranger = cls(url, "")
        try:
            answer = await stranger.ask("POST", "/v1/accounts", {"name": name, "opening_msat": opening_msat})
        finally:
            await stranger.close()
        return cls(url, str(answer["token"])), str(answer["token"])

    @classmethod
    def from_file(cls, url: str, token_file: Path | None) -> Self:
        """The wallet whose token is in `token_file`; without a file, one that has no account.

        Raises:
            BadConfig: the file cannot be read.

        """
        if token_file is None:
            return cls(url, "")
        try:
            wallet = cls(url, token_file.read_text().strip())
        except OSError as error:
            reason = f"cannot be read ({error.strerror}); `nodewire wallet open` makes one"
            raise BadConfig(str(token_file), reason) from error
        wallet._token_file = token_file
        return wallet

    async def info(self) -> WalletInfo:
        said = await self.ask("GET", "/v1/info")
        network = str(said["network"])
        if network not in self.networks:
            raise NotAllowed("network", f"a simulated network has play money of {self.networks[0]}, not of {network}")
        unit_msat = int(said["unit_msat"])
        return WalletInfo(f"sim:{said['node']}", network, unit_msat, unit_msat, invoices.MAX_MSAT, ABILITIES)

    async def balance_msat(self) -> int:
        return int((await self.ask("GET", "/v1/balance"))["balance_msat"])

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        return await self._invoice(amount_msat, description, expiry_s)

    async def hold_invoice(self, amount_msat: int, *, payment_hash: str, description: str, expiry_s: int) -> Invoice:
        return await self._invoice(amount_msat, description, expiry_s, payment_hash=payment_hash)

    async def settle_hold(self, preimage: str) -> None:
        await self.ask("POST", "/v1/holds/settle", {"preimage": preimage})

    async def cancel_hold(self, payment_hash: str) -> None:
        await self.ask("POST", "/v1/holds/cancel", {"payment_hash": payment_hash})

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        answer = await self.ask("POST", "/v1/payments", {"bolt11": bolt11, "max_fee_msat": max_fee_msat})
        while answer["state"] == "pending" and (left_s := until - loop.time()) > 0:
            wait_s = min(_WAIT_S, int(left_s) + 1)
            path = f"/v1/transfers/{answer['payment_hash']}?direction=out&wait_s={wait_s}"
            answer = await self.ask("GET", path, wait_s=left_s)
        return _transfer(answer)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        if _HEX32.fullmatch(payment_hash) is None:
            raise BadInput("payment_hash", "not 64 lowercase hex digits")
        return _transfer(await self.ask("GET", f"/v1/transfers/{payment_hash}?direction={direction}"))

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        own, at, pause_s = "", 0, 0.05
        while True:
            try:
                if not own:
                    own = (await self.info()).id
                    at = cursor.place_of(own, after)
                page = await self.ask("GET", f"/v1/events?after={at}&limit={_PAGE}&wait_s={_WAIT_S}", wait_s=_WAIT_S)
            except (LinkLost, TimedOut):  # the service restarts; the cursor says where to go on
                await asyncio.sleep(pause_s)
                pause_s = min(5.0, pause_s * 2)
                continue
            pause_s = 0.05
            for event in page["events"]:
                at = int(event["cursor"])
                if event["event"] == "settled" and event["direction"] == "in":
                    yield Receipt(
                        cursor=cursor.at(own, at),
                        payment_hash=event["payment_hash"],
                        preimage=event["preimage"],
                        amount_msat=int(event["amount_msat"]),
                        settled_at_s=int(event["at_s"]),
                    )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _invoice(self, amount_msat: int, description: str, expiry_s: int, **more: str) -> Invoice:
        body = {"amount_msat": amount_msat, "description_hash": description_hash(description), "expiry_s": expiry_s}
        answer = await self.ask("POST", "/v1/invoices", {**body, **more})
        return invoices.decode(str(answer["bolt11"]), network=invoices.REGTEST)

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        wait_s: float = 0.0,
        keys: Keys | None = None,
    ) -> dict[str, Any]:
        """The service's JSON answer to this account, and to `keys` (NIP-98) where they are needed.

        Raises:
            BadInput: the service's address is no URL.
            LinkLost, TimedOut: no answer, or one that is not the service's own (a proxy's page, a crash).
            NodewireError: what the service reports.

        """
        if self._session is None:
            self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {self._token}"})
        limit = aiohttp.ClientTimeout(total=self._timeout_s + wait_s)
        data = orjson.dumps(body) if body is not None else None
        headers = {}
        if keys is not None:
            asked = nip98.HttpRequest(self._url + path, method, data or b"")
            headers["Nostr-Authorization"] = nip98.header(keys, asked, now_s=int(time.time()))
        try:
            try:
                status, raw = await self._exchange(self._session, method, path, data, headers, limit)
            except (
                aiohttp.ServerDisconnectedError,
                aiohttp.ClientOSError,
            ):  # a connection kept from before the service's restart
                # Every request may be repeated: what moves money is idempotent, an unused invoice expires.
                status, raw = await self._exchange(self._session, method, path, data, headers, limit)
        except TimeoutError as error:
            raise TimedOut("wallet", f"no answer from {self._url}") from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise BadInput("wallet", f"{self._url!r} is no URL such as http://127.0.0.1:3338") from error
        except aiohttp.ClientError as error:
            raise LinkLost("wallet", f"{self._url}: {error}"[:300]) from error
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise LinkLost("wallet", f"{self._url} answered {status} and no JSON: {_OTHER}") from error
        if status >= 500 or not isinstance(answer, dict):  # the service reports its errors below 500, as objects
            raise LinkLost("wallet", f"{self._url} answered {status} and nothing of its own: {_OTHER}")
        if status != 200:
            refused = from_dict(answer)
            if self._token_file is not None and isinstance(refused, NotAllowed) and refused.field == "token":
                said = f"{self._url} does not know the token: is it another network's? ({self._token_file})"
                raise NotAllowed("token", said)
            raise refused
        return answer

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
        limit: aiohttp.ClientTimeout,
    ) -> tuple[int, bytes]:
        url = self._url + path
        async with session.request(
            method, url, data=data, headers=headers, timeout=limit, allow_redirects=False
        ) as response:
            raw = bytearray()
            async for piece in response.content.iter_chunked(65_536):
                raw += piece
                if len(raw) > MAX_ANSWER_BYTES:
                    raise LinkLost("wallet", f"its answer is over {MAX_ANSWER_BYTES} bytes")
            return response.status, bytes(raw)


def _transfer(answer: dict[str, Any]) -> Transfer:
    return Transfer(
        payment_hash=answer["payment_hash"],
        direction=answer["direction"],
        state=answer["state"],
        amount_msat=int(answer["amount_msat"]),
        fee_msat=int(answer["fee_msat"]),
        preimage=answer["preimage"],
        at_s=int(answer["at_s"]),
        reason=str(answer["reason"]) if answer["state"] == "failed" else "",
    )
