"""A Bitcoin node's JSON-RPC, as bonds use it: what an output holds, a wallet's payment, a transaction sent.

The file that names the node has one line: http://USER:PASSWORD@HOST:PORT, and /wallet/NAME if coins are paid.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import orjson
from yarl import URL

from nodewire.errors import BadConfig, BadInput, LinkLost, NodewireError, NotAllowed, NotFound, PaymentFailed, TimedOut
from nodewire.pay.bitcoin.transaction import Outpoint, Transaction

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.pay.bitcoin.taproot import TaprootOutput

MAX_ANSWER_BYTES = 8_000_000
_NETWORKS = {"main": "bc", "test": "tb", "testnet4": "tb", "signet": "tbs", "regtest": "bcrt"}
_NO_FUNDS, _NO_TX, _KNOWN, _NO_WALLET = -6, -5, -27, -18
_SCAN_S = 3_600.0
_SAT = Decimal(100_000_000)


@dataclass(frozen=True, slots=True)
class ChainOutput:
    """An output that nobody has spent, neither in a block nor in the node's pool."""

    amount_sat: int
    script_pubkey: bytes
    confirmations: int


class BitcoinNode:
    """Every method raises LinkLost or TimedOut (no answer), NotAllowed (the node refuses the password)."""

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        parsed = URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.user is None:
            raise BadConfig("bitcoin", "the file has no line such as http://USER:PASSWORD@127.0.0.1:8332/wallet/NAME")
        word = base64.b64encode(f"{parsed.user}:{parsed.password or ''}".encode()).decode()
        self._headers = {"Authorization": f"Basic {word}"}
        self._url = parsed.with_user(None)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """The node that the file names. Raises BadConfig."""
        try:
            return cls(path.read_text().strip())
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no URL"
            raise BadConfig(str(path), f"cannot be read as the URL of a Bitcoin node's RPC ({reason})") from None

    def __repr__(self) -> str:
        return f"BitcoinNode({self._url.host})"

    async def network(self) -> str:
        """The chain, by its name in bolt11."""
        chain = str((await self._ask("getblockchaininfo"))["chain"])
        if chain not in _NETWORKS:
            raise LinkLost("bitcoin", f"the node is of chain {chain[:40]!r}")
        return _NETWORKS[chain]

    async def median_time_s(self) -> int:
        """The time by which lock times count: the median of the last eleven blocks', unix seconds."""
        return int((await self._ask("getblockchaininfo"))["mediantime"])

    async def output(self, at: Outpoint) -> ChainOutput:
        """Raises NotFound: there is none, or it is spent."""
        said = await self._ask("gettxout", at.txid, at.index, True)
        if said is None:
            raise NotFound("output", f"{at.txid[:16]}…:{at.index} is spent, or no block has it yet")
        try:
            script = bytes.fromhex(said["scriptPubKey"]["hex"])
            return ChainOutput(_sat(said["value"]), script, int(said["confirmations"]))
        except (KeyError, TypeError, ValueError) as error:
            raise LinkLost("bitcoin", "the node's answer about an output is malformed") from error

    async def unspent(self, output: TaprootOutput) -> dict[Outpoint, int]:
        """What blocks have at this output and nobody has spent: satoshis by outpoint. The node reads its whole set."""
        asked = [{"desc": f"raw({output.script_pubkey.hex()})"}]
        said = await self._ask("scantxoutset", "start", asked, timeout_s=_SCAN_S)
        try:
            return {Outpoint(str(one["txid"]), int(one["vout"])): _sat(one["amount"]) for one in said["unspents"]}
        except (KeyError, TypeError, ValueError) as error:
            raise LinkLost("bitcoin", "the node's list of outputs is malformed") from error

    async def pay(self, output: TaprootOutput, amount_sat: int) -> Outpoint:
        """Pay from the node's wallet; the new output.

        Raises:
            PaymentFailed: the wallet has too little.

        """
        address = output.address(await self.network())
        txid = str(await self._ask("sendtoaddress", address, _btc(amount_sat)))
        found = [at for at, sat in (await self._sent(address)).items() if at.txid == txid and sat == amount_sat]
        if not found:
            raise LinkLost("bitcoin", f"the wallet's record lacks its payment {txid}")
        return found[0]

    async def paid(self, output: TaprootOutput) -> dict[Outpoint, int]:
        """What the node's wallet has paid there, confirmed or not, by its own record: satoshis by outpoint."""
        return await self._sent(output.address(await self.network()))

    async def new_script(self) -> bytes:
        """The script of a new address of the node's wallet."""
        address = str(await self._ask("getnewaddress"))
        return bytes.fromhex(str((await self._ask("getaddressinfo", address))["scriptPubKey"]))

    async def fee_rate(self, least_sat: int = 1) -> int:
        """Satoshis for a virtual byte by which a transaction is in a block within a day, at least `least_sat`."""
        said = await self._ask("estimatesmartfee", 144)
        rate = said.get("feerate") if isinstance(said, dict) else None
        return max(least_sat, -(-_sat(rate) // 1_000)) if rate is not None else least_sat

    async def send(self, signed: Transaction) -> str:
        """Broadcast; its txid. Again is no error.

        Raises:
            PaymentFailed: the node refuses it, in its words.

        """
        try:
            await self._ask("sendrawtransaction", signed.serialized().hex())
        except PaymentFailed:
            if not await self.knows(signed):
                raise
        return signed.txid

    async def knows(self, signed: Transaction) -> bool:
        """Whether an output of the transaction is on the chain or in the node's pool, unspent."""
        for index in range(len(signed.outputs)):
            try:
                await self.output(Outpoint(signed.txid, index))
            except NotFound:
                continue
            return True
        return False

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _sent(self, address: str) -> dict[Outpoint, int]:
        said = await self._ask("listsinceblock")
        try:
            sends = [one for one in said["transactions"] if one["category"] == "send" and one.get("address") == address]
            alive = [one for one in sends if int(one["confirmations"]) >= 0 and not one.get("abandoned")]
            return {Outpoint(str(one["txid"]), int(one["vout"])): -_sat(one["amount"]) for one in alive}
        except (KeyError, TypeError, ValueError) as error:
            raise LinkLost("bitcoin", "the node's list of payments is malformed") from error

    async def _ask(self, method: str, *params: object, timeout_s: float | None = None) -> Any:
        """The node's result.

        Raises:
            LinkLost, TimedOut, NotAllowed: as every method.
            PaymentFailed, BadConfig, NotFound, BadInput: the node's refusal, in its words.

        """
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers)
        body = orjson.dumps({"jsonrpc": "1.0", "id": "nodewire", "method": method, "params": params})
        limit = aiohttp.ClientTimeout(total=timeout_s or self._timeout_s)
        try:
            async with self._session.post(self._url, data=body, timeout=limit, allow_redirects=False) as response:
                raw = await response.content.read(MAX_ANSWER_BYTES + 1)
                while len(raw) <= MAX_ANSWER_BYTES and (piece := await response.content.read(MAX_ANSWER_BYTES)):
                    raw += piece
        except TimeoutError as error:
            raise TimedOut("bitcoin", f"no answer from {self._url.host}") from error
        except aiohttp.ClientError as error:
            raise LinkLost("bitcoin", f"{self._url.host}: {type(error).__name__}") from error
        if response.status in (401, 403):
            raise NotAllowed("bitcoin", f"{self._url.host} refuses the user and password of the file")
        if len(raw) > MAX_ANSWER_BYTES:
            raise LinkLost("bitcoin", f"the answer is over {MAX_ANSWER_BYTES} bytes")
        try:
            said = orjson.loads(raw)
            problem = said["error"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise LinkLost("bitcoin", f"answered {response.status} and nothing of a node's") from error
        if problem is not None:
            raise _refusal(method, problem)
        return said["result"]


def _refusal(method: str, problem: Any) -> NodewireError:
    code, text = (problem.get("code"), str(problem.get("message", ""))[:200]) if isinstance(problem, dict) else (0, "")
    if code in (_NO_WALLET, -19):
        return BadConfig("bitcoin", f"the node says: {text}; end the URL with /wallet/NAME")
    if code == _NO_FUNDS or method in ("sendrawtransaction", "sendtoaddress"):
        return PaymentFailed("bitcoin", f"the node refuses: {text}")
    if code == _NO_TX:
        return NotFound("bitcoin", text)
    return BadInput("bitcoin", f"the node refuses {method}: {text}")


def _sat(value: object) -> int:
    """Satoshis of an amount in BTC that the node wrote. Raises ValueError."""
    try:
        sat = Decimal(str(value)) * _SAT
    except InvalidOperation as error:
        raise ValueError("no amount") from error
    if sat != int(sat):
        raise ValueError("an amount below a satoshi")
    return int(sat)


def _btc(sat: int) -> str:
    return str(Decimal(sat) / _SAT)
