"""A Cashu mint's HTTP API (NUT-01 to 07, 09, 23), with bounds: no answer of the mint's is believed before a check."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from nodewire.errors import (
    BadConfig,
    BadInput,
    BadSignature,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    PaymentFailed,
    TimedOut,
)
from nodewire.pay.ecash.proofs import BlankOutput, Proof, unblind

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ANSWER_BYTES = 4_000_000
UNIT = "sat"
_MOST_KEYS = 128
_UNKNOWN_QUOTE, _SPENT, _ISSUED, _OUTPUTS_SIGNED = 20007, 11001, 20002, (10002, 11003)


@dataclass(frozen=True, slots=True)
class Keyset:
    """Keys by amount in satoshis; an input costs `fee_ppk` thousandths of one."""

    id: str
    is_active: bool
    fee_ppk: int
    keys: dict[int, str]


@dataclass(frozen=True, slots=True)
class Quote:
    """A mint's quote: an invoice to be paid to it (mint), or that it pays (melt). Who knows a mint's id can have it."""

    id: str
    bolt11: str
    amount_sat: int
    fee_sat: int
    state: str
    """"UNPAID", "PENDING", "PAID" or "ISSUED"."""
    expires_at_s: int
    preimage: str
    change: tuple[Any, ...] = ()
    """A melt's: blind signatures on what was left of the fee."""

    def __repr__(self) -> str:
        return f"Quote({self.amount_sat} sat, {self.state})"


class MintRefused(PaymentFailed):
    """The mint itself refused, in its words: nothing was spent or signed by that request. `number` is its code."""

    def __init__(self, number: int, said: str) -> None:
        super().__init__("mint", f"refuses: {said}" if said else f"refuses (code {number})")
        self.number = number

    @property
    def is_spent(self) -> bool:
        """An input was spent before."""
        return self.number == _SPENT

    @property
    def is_signed(self) -> bool:
        """It signed these outputs, or gave the quote's, before: they can be restored."""
        return self.number in (_ISSUED, *_OUTPUTS_SIGNED)


class Mint:
    """Every method raises LinkLost or TimedOut (what was asked may have happened), or MintRefused (it did not)."""

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadConfig("mint", f"{url[:200]!r} is no URL such as https://mint.example")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._keysets: dict[str, Keyset] = {}

    async def info(self) -> dict[str, Any]:
        return await self.ask("GET", "/v1/info")

    async def supports(self, nut: int) -> bool:
        nuts = (await self.info()).get("nuts")
        said = nuts.get(str(nut)) if isinstance(nuts, dict) else None
        return isinstance(said, dict) and said.get("supported") is True

    async def active(self) -> Keyset:
        """The keyset of satoshis that the mint signs by, with its keys: of several the one whose inputs cost least.

        Raises:
            NotAllowed: there is none.

        """
        said = await self.ask("GET", "/v1/keysets")
        rows = [row for row in _list(said, "keysets") if isinstance(row, dict)]
        active = [row for row in rows if row.get("active") is True and row.get("unit") == UNIT]
        named = [row for row in active if isinstance(row.get("id"), str) and len(row["id"]) in (16, 66)]
        if not named:
            raise NotAllowed("mint", f"{self.url} has no active keyset of satoshis with an id of version 00 or 01")
        best = min(named, key=lambda row: (_number(row.get("input_fee_ppk") or 0), str(row["id"])))
        return await self.keyset(str(best["id"]))

    async def is_active(self, id_: str) -> bool:
        """Whether the mint signs by that keyset now."""
        rows = _list(await self.ask("GET", "/v1/keysets"), "keysets")
        return any(row.get("id") == id_ and row.get("active") is True for row in rows if isinstance(row, dict))

    async def listed(self) -> frozenset[str]:
        """The ids of all its keysets, of whatever unit."""
        rows = _list(await self.ask("GET", "/v1/keysets"), "keysets")
        return frozenset(str(row.get("id")) for row in rows if isinstance(row, dict))

    async def keyset(self, id_: str) -> Keyset:
        """The keyset of satoshis, whose id is checked by its keys.

        Raises:
            BadSignature: the mint's keys are others than the id says.
            NotAllowed: it is of another unit.

        """
        if id_ not in self._keysets:
            rows = _list(await self.ask("GET", f"/v1/keys/{id_}"), "keysets")
            row = next((row for row in rows if isinstance(row, dict) and row.get("id") == id_), None)
            listed = _list(await self.ask("GET", "/v1/keysets"), "keysets")
            about = next((one for one in listed if isinstance(one, dict) and one.get("id") == id_), None)
            if row is None or about is None or not isinstance(row.get("keys"), dict):
                raise LinkLost("mint", "it does not tell the keys of a keyset that it lists")
            if about.get("unit") != UNIT:
                raise NotAllowed("keyset", f"it is of another unit than {UNIT}")
            self._keysets[id_] = _checked(id_, row["keys"], about)
        return self._keysets[id_]

    async def fee_sat(self, inputs: Sequence[Proof]) -> int:
        """What the mint takes for so many inputs."""
        ppk = sum([(await self.keyset(one.id)).fee_ppk for one in inputs])
        return -(-ppk // 1_000)

    async def mint_quote(self, amount_sat: int, description: str = "") -> Quote:
        """An invoice to the mint for so many satoshis of ecash."""
        body: dict[str, Any] = {"amount": amount_sat, "unit": UNIT}
        body |= {"description": description} if description else {}
        return _quote(await self.ask("POST", "/v1/mint/quote/bolt11", body))

    async def mint_state(self, quote: str) -> Quote:
        return _quote(await self.ask("GET", f"/v1/mint/quote/bolt11/{_path(quote)}"))

    async def mint(self, quote: str, outputs: Sequence[BlankOutput]) -> list[Proof]:
        """The ecash of a paid quote."""
        body = {"quote": quote, "outputs": [one.as_output() for one in outputs]}
        return await self._signed(outputs, await self.ask("POST", "/v1/mint/bolt11", body))

    async def melt_quote(self, bolt11: str) -> Quote:
        """What the mint asks for the payment of an invoice: its amount and at most `fee_sat`."""
        return _quote(await self.ask("POST", "/v1/melt/quote/bolt11", {"request": bolt11, "unit": UNIT}))

    async def melt_state(self, quote: str) -> Quote:
        return _quote(await self.ask("GET", f"/v1/melt/quote/bolt11/{_path(quote)}"))

    async def melt(
        self, quote: str, inputs: Sequence[dict[str, Any]], change: Sequence[BlankOutput] = (), *, wait_s: float = 60.0
    ) -> Quote:
        """Have the invoice of the quote paid by these inputs; the quote as it then stands."""
        body: dict[str, Any] = {"quote": quote, "inputs": list(inputs)}
        body |= {"outputs": [one.as_output() for one in change]} if change else {}
        return _quote(await self.ask("POST", "/v1/melt/bolt11", body, wait_s=wait_s))

    async def swap(self, inputs: Sequence[dict[str, Any]], outputs: Sequence[BlankOutput]) -> list[Proof]:
        """New proofs for old ones."""
        body = {"inputs": list(inputs), "outputs": [one.as_output() for one in outputs]}
        return await self._signed(outputs, await self.ask("POST", "/v1/swap", body))

    async def states(self, proofs: Sequence[Proof]) -> list[str]:
        """Of each proof "UNSPENT", "PENDING" or "SPENT"."""
        ys = [one.y for one in proofs]
        rows = _list(await self.ask("POST", "/v1/checkstate", {"Ys": ys}), "states")
        found = {row.get("Y"): row.get("state") for row in rows if isinstance(row, dict)}
        if any(found.get(y) not in ("UNSPENT", "PENDING", "SPENT") for y in ys):
            raise LinkLost("mint", "it does not tell the state of each proof")
        return [str(found[y]) for y in ys]

    async def unspent(self, proofs: Sequence[Proof]) -> list[Proof]:
        """Those that were not spent."""
        states = await self.states(proofs) if proofs else []
        return [one for one, state in zip(proofs, states, strict=True) if state != "SPENT"]

    async def restored(self, outputs: Sequence[BlankOutput]) -> list[Proof]:
        """The proofs of those outputs that the mint has signed (NUT-09)."""
        said = await self.ask("POST", "/v1/restore", {"outputs": [one.as_output() for one in outputs]})
        by_b = {one.b: one for one in outputs}
        rows = zip(_list(said, "outputs"), _list(said, "signatures"), strict=False)
        pairs = [(by_b[o["B_"]], s) for o, s in rows if isinstance(o, dict) and o.get("B_") in by_b]
        found = []
        for output, signature in pairs:
            keys = (await self.keyset(output.id)).keys
            found += unblind([output], [signature], keys)
        return found

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _signed(self, outputs: Sequence[BlankOutput], said: dict[str, Any]) -> list[Proof]:
        """The proofs of a mint's signatures; outputs are of one keyset."""
        return unblind(outputs, said.get("signatures"), (await self.keyset(outputs[0].id)).keys) if outputs else []

    async def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, wait_s: float = 0.0
    ) -> dict[str, Any]:
        """The mint's JSON answer. Neither a secret nor a quote's id stands in an error."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        limit = aiohttp.ClientTimeout(total=self._timeout_s + wait_s)
        try:
            async with self._session.request(
                method, self.url + path, json=body, timeout=limit, allow_redirects=False
            ) as response:
                raw = await response.content.read(MAX_ANSWER_BYTES + 1)
                while len(raw) <= MAX_ANSWER_BYTES and (piece := await response.content.read(MAX_ANSWER_BYTES)):
                    raw += piece
        except TimeoutError as error:
            raise TimedOut("mint", f"no answer from {self.url}") from error
        except aiohttp.ClientError as error:
            raise LinkLost("mint", f"{self.url}: {type(error).__name__}") from error
        if len(raw) > MAX_ANSWER_BYTES:
            raise LinkLost("mint", f"the answer is over {MAX_ANSWER_BYTES} bytes")
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise LinkLost("mint", f"answered {response.status} and no JSON") from error
        if not isinstance(answer, dict):
            raise LinkLost("mint", f"answered {response.status} and nothing of a mint's")
        if response.status < 300:
            return answer
        refusal = _refusal(response.status, answer)
        if isinstance(refusal, MintRefused):
            self._keysets.clear()  # a fee may have changed since, or a keyset may sign no more
        raise refusal


def _refusal(status: int, answer: dict[str, Any]) -> NodewireError:
    code, said = answer.get("code"), answer.get("detail")
    text = said[:120] if isinstance(said, str) and "secret" not in said.lower() else ""
    if code == _UNKNOWN_QUOTE or status == 404:
        return NotFound("quote", text)
    if "pending" in text.lower():  # mints differ in its code; a request of ours whose answer was lost may yet end well
        return LinkLost("mint", "the proofs are in a request that is under way: ask again later")
    if 400 <= status < 500 and status != 429:
        return MintRefused(code if type(code) is int else 0, text)
    return LinkLost("mint", f"answered {status}")


def _checked(id_: str, said: dict[str, Any], about: dict[str, Any]) -> Keyset:
    """Raises BadSignature unless the id is the digest of the keys, by version 00 or 01 of NUT-02."""
    if len(said) > _MOST_KEYS or not all(isinstance(key, str) and len(key) == 66 for key in said.values()):
        raise BadSignature("keyset", "its keys are no compressed points, or too many")
    try:
        keys = {int(amount): str(key) for amount, key in sorted(said.items(), key=lambda one: int(one[0]))}
        raw = b"".join(bytes.fromhex(key) for key in keys.values())
    except ValueError as error:
        raise BadSignature("keyset", "its keys are malformed") from error
    fee_ppk, expiry = _number(about.get("input_fee_ppk") or 0), about.get("final_expiry")
    if id_.startswith("00"):
        derived = "00" + hashlib.sha256(raw).hexdigest()[:14]
    else:
        text = ",".join(f"{amount}:{key}" for amount, key in keys.items()) + f"|unit:{UNIT}"
        text += f"|input_fee_ppk:{fee_ppk}" if fee_ppk else ""
        text += f"|final_expiry:{_number(expiry)}" if expiry else ""
        derived = "01" + hashlib.sha256(text.encode()).hexdigest()
    if derived != id_:
        raise BadSignature("keyset", f"{id_} is not the id of the keys that the mint tells")
    return Keyset(id_, about.get("active") is True, fee_ppk, keys)


def _quote(said: dict[str, Any]) -> Quote:
    change, preimage, expiry = said.get("change"), said.get("payment_preimage"), said.get("expiry")
    id_, bolt11, state = (said.get(name) for name in ("quote", "request", "state"))
    if not (isinstance(id_, str) and 0 < len(id_) <= 256 and state in ("UNPAID", "PENDING", "PAID", "ISSUED")):
        raise LinkLost("mint", "its quote is malformed")
    return Quote(
        id=id_,
        bolt11=bolt11 if isinstance(bolt11, str) else "",
        amount_sat=_number(said.get("amount") or 0),
        fee_sat=_number(said.get("fee_reserve") or 0),
        state=str(state),
        expires_at_s=_number(expiry or 0),
        preimage=preimage if isinstance(preimage, str) else "",
        change=tuple(change[:64]) if isinstance(change, list) else (),
    )


def _path(quote: str) -> str:
    if not all(letter.isascii() and (letter.isalnum() or letter in "-_=") for letter in quote):
        raise BadInput("quote", "its id has letters that no URL has")
    return quote


def _list(said: dict[str, Any], name: str) -> list[Any]:
    found = said.get(name)
    if not isinstance(found, list):
        raise LinkLost("mint", f"its answer has no list of {name}")
    return found


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise LinkLost("mint", "a number in its answer is none")
    return value
