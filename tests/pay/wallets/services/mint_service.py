"""A Cashu mint in the process of a test: real signatures, play money, and whatever fault it is told to have.

It looks at no lock. What a test makes of it stands in the fields that it may change.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web
from coincurve import PrivateKey, PublicKey

from nodewire.pay.ecash.blind import hash_to_curve
from nodewire.pay.lightning import invoices

_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
MINT_QUOTE, MINT_STATE, MINT = (
    "POST /v1/mint/quote/bolt11",
    "GET /v1/mint/quote/bolt11/{quote}",
    "POST /v1/mint/bolt11",
)
MELT_QUOTE, MELT_STATE, MELT = (
    "POST /v1/melt/quote/bolt11",
    "GET /v1/melt/quote/bolt11/{quote}",
    "POST /v1/melt/bolt11",
)
INFO, KEYSETS, KEYS = "GET /v1/info", "GET /v1/keysets", "GET /v1/keys/{id}"
SWAP, STATES, RESTORE = "POST /v1/swap", "POST /v1/checkstate", "POST /v1/restore"


class Refused(Exception):
    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code, self.said = code, said


class MintService:
    """At `url` while it is `serving`."""

    def __init__(self, fee_ppk: int = 0, fee_sat: int = 0) -> None:
        self.secrets = {1 << bit: PrivateKey(hashlib.sha256(b"key %d" % bit).digest()) for bit in range(22)}
        self.keys = {amount: key.public_key.format().hex() for amount, key in self.secrets.items()}
        raw = b"".join(bytes.fromhex(key) for key in self.keys.values())
        self.id = "00" + hashlib.sha256(raw).hexdigest()[:14]
        self.fee_ppk, self.fee_sat = fee_ppk, fee_sat
        """What it takes for an input, and reserves for a payment; it gives back all of the reserve."""
        self.age_s = 0
        """How long ago it says that it made its invoices."""
        self.url = ""
        self.asked: list[str] = []
        self.instead: dict[str, Callable[..., Any]] = {}
        """By call, what answers once in its place: it gets a function that does what the mint would."""
        self.spent: set[str] = set()
        self.pending: set[str] = set()
        self.signed: dict[str, dict[str, Any]] = {}
        self.quotes: dict[str, dict[str, Any]] = {}
        self.given: set[str] = set()

    @contextlib.asynccontextmanager
    async def serving(self):
        app = web.Application(client_max_size=2**24)
        for call, handler in {
            INFO: self._info,
            KEYSETS: self._keysets,
            KEYS: self._keys,
            MINT_QUOTE: self._mint_quote,
            MINT_STATE: self._quote,
            MINT: self._mint,
            MELT_QUOTE: self._melt_quote,
            MELT_STATE: self._quote,
            MELT: self._melt,
            SWAP: self._swap,
            STATES: self._states,
            RESTORE: self._restore,
        }.items():
            app.router.add_route(*call.split(), self._handler(call, handler))
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def pay(self, quote: str) -> None:
        """The invoice of a quote is paid from outside."""
        self.quotes[quote]["state"] = "PAID"

    def _handler(self, call, handler):
        async def answer(request):
            self.asked.append(call)
            said = {**(await request.json() if request.can_read_body else {}), **request.match_info}

            def do():
                try:
                    return 200, handler(said)
                except Refused as error:
                    return 400, {"code": error.code, "detail": error.said}

            found = self.instead.pop(call)(do) if call in self.instead else do()
            found = await found if inspect.isawaitable(found) else found
            if isinstance(found, web.StreamResponse):
                return found
            return web.json_response(found[1], status=found[0])

        return answer

    def _info(self, _):
        return {"name": "test", "nuts": {"9": {"supported": True}}}

    def _keysets(self, _):
        return {"keysets": [{"id": self.id, "unit": "sat", "active": True, "input_fee_ppk": self.fee_ppk}]}

    def _keys(self, _):
        keys = {str(amount): key for amount, key in self.keys.items()}
        return {"keysets": [{"id": self.id, "unit": "sat", "keys": keys}]}

    def _invoice(self, amount_sat):
        return invoices.issue(
            os.urandom(32),
            network="bcrt",
            amount_msat=amount_sat * 1_000,
            payment_hash=os.urandom(32).hex(),
            created_at_s=int(time.time()) - self.age_s,
            expiry_s=600,
            description="x",
        ).bolt11

    def _mint_quote(self, said):
        return self._quoted(said["amount"], self._invoice(said["amount"]))

    def _melt_quote(self, said):
        amount_sat = -(-invoices.decode(said["request"]).amount_msat // 1_000)
        return self._quoted(amount_sat, said["request"]) | {"fee_reserve": self.fee_sat}

    def _quoted(self, amount_sat, bolt11):
        id_ = os.urandom(8).hex()
        self.quotes[id_] = {"quote": id_, "request": bolt11, "amount": amount_sat, "state": "UNPAID", "expiry": None}
        return self.quotes[id_]

    def _quote(self, said):
        if said["quote"] not in self.quotes:
            raise Refused(20007, "quote unknown")
        return self.quotes[said["quote"]]

    def _mint(self, said):
        quote = self._quote(said)
        if quote["state"] != "PAID":
            raise Refused(20002 if quote["state"] == "ISSUED" else 20001, "not paid, or issued")
        found = self._sign(said["outputs"])
        quote["state"] = "ISSUED"
        return {"signatures": found}

    def _melt(self, said):
        quote = self._quote(said)
        self._spend(said["inputs"])
        change, left_sat = [], self.fee_sat
        for one in said.get("outputs", []):
            amount_sat = 1 << left_sat.bit_length() - 1 if left_sat else 0
            change += self._sign([one | {"amount": amount_sat}]) if amount_sat else []
            left_sat -= amount_sat
        quote |= {"state": "PAID", "change": change, "payment_preimage": "00" * 32}
        return quote

    def _swap(self, said):
        fee_sat = -(-self.fee_ppk * len(said["inputs"]) // 1_000)
        if sum(one["amount"] for one in said["inputs"]) != sum(one["amount"] for one in said["outputs"]) + fee_sat:
            raise Refused(11002, "not balanced")
        if any(one["B_"] in self.signed for one in said["outputs"]):
            raise Refused(10002, "outputs signed before")
        self._spend(said["inputs"])
        return {"signatures": self._sign(said["outputs"])}

    def _states(self, said):
        def state(y):
            return "SPENT" if y in self.spent else "PENDING" if y in self.pending else "UNSPENT"

        return {"states": [{"Y": y, "state": state(y)} for y in said["Ys"]]}

    def _restore(self, said):
        found = [one for one in said["outputs"] if one["B_"] in self.signed]
        return {"outputs": found, "signatures": [self.signed[one["B_"]] for one in found]}

    def _spend(self, inputs):
        for one in inputs:
            y = hash_to_curve(one["secret"].encode())
            if PublicKey(bytes.fromhex(y)).multiply(self.secrets[one["amount"]].secret).format().hex() != one["C"]:
                raise Refused(10001, "no proof of this mint's")
            if y in self.spent:
                raise Refused(11001, "spent before")
        self.spent |= {hash_to_curve(one["secret"].encode()) for one in inputs}

    def _sign(self, outputs):
        for one in outputs:
            key, b = self.secrets[one["amount"]], PublicKey(bytes.fromhex(one["B_"]))
            c, nonce = b.multiply(key.secret), PrivateKey()
            points = (nonce.public_key, b.multiply(nonce.secret), key.public_key, c)
            e = hashlib.sha256("".join(each.format(compressed=False).hex() for each in points).encode()).digest()
            s = (int.from_bytes(nonce.secret, "big") + int.from_bytes(e, "big") * key.to_int()) % _ORDER
            dleq = {"e": e.hex(), "s": f"{s:064x}"}
            self.signed[one["B_"]] = {"amount": one["amount"], "id": self.id, "C_": c.format().hex(), "dleq": dleq}
        return [self.signed[one["B_"]] for one in outputs]


async def fill(service: MintService, wallet: Any, amount_sat: int) -> None:
    """So much ecash into a wallet, as one who pays its invoice from outside brings it."""
    made = await wallet.invoice(amount_sat * 1_000, description="x", expiry_s=600)
    service.pay(wallet.purse.invoice(made.payment_hash).quote)
    assert await wallet.balance_msat() >= amount_sat * 1_000
