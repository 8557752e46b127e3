"""A Cashu mint in this process: real keys, signatures and locks; it can lose an answer, refuse, or be dear."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time

from aiohttp import web
from coincurve import PrivateKey, PublicKey

from nodewire.nostr.keys import verify
from nodewire.pay.ecash.blind import hash_to_curve
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Transfer

_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
SPENT, ISSUED, WRONG_LOCK, SIGNED, RETIRED = 11001, 20002, 30001, 11003, 12002


class RefusedError(Exception):
    pass


class MintService:
    """`faults` by path: "lost" answers 500 once it has acted; a number refuses by this code; once each, in order.

    A fault ("acted", code) refuses by the code although it has acted.
    """

    def __init__(self):
        self.keysets = {}
        self.rotate()
        self.nuts, self.is_active, self.fee_ppk = {"11": {"supported": True}}, True, 0
        self.quotes, self.signed, self.spent = {}, {}, set()
        self.melt_fees_sat, self.melt_state, self.state_of_all = [], "PAID", ""
        self.faults = {}

    def rotate(self):
        """Sign by another keyset from now on."""
        number = 100 * len(self.keysets)
        self.keys = {1 << n: PrivateKey(hashlib.sha256(b"%d" % (number + n)).digest()) for n in range(21)}
        raw = b"".join(key.public_key.format() for key in self.keys.values())
        self.id = "00" + hashlib.sha256(raw).hexdigest()[:14]
        self.keysets[self.id] = self.keys

    async def handle(self, request):
        body = await request.json() if request.can_read_body else {}
        _, _, *words = request.path.split("/")
        fault = self.faults[request.path].pop(0) if self.faults.get(request.path) else None
        try:
            if isinstance(fault, int):
                raise RefusedError(fault)
            name = words[:2] if words[0] in ("mint", "melt") else words[:1]
            said = getattr(self, "_".join([request.method.lower(), *name]))(words, body)
            if isinstance(fault, tuple):
                raise RefusedError(fault[1])
        except RefusedError as error:
            return web.json_response({"code": error.args[0], "detail": "no"}, status=400)
        return web.json_response(said, status=500 if fault == "lost" else 200)

    def get_info(self, words, body):
        return {"nuts": self.nuts}

    def get_keysets(self, words, body):
        about = {"unit": "sat", "input_fee_ppk": self.fee_ppk}
        return {"keysets": [{**about, "id": id_, "active": self._signs_by(id_)} for id_ in self.keysets]}

    def _signs_by(self, id_):
        return self.is_active and id_ == self.id

    def get_keys(self, words, body):
        keys = {str(sat): key.public_key.format().hex() for sat, key in self.keysets[words[1]].items()}
        return {"keysets": [{"id": words[1], "unit": "sat", "keys": keys}]}

    # Quotes

    def post_mint_quote(self, words, body):
        id_ = os.urandom(8).hex()
        bolt11 = new_invoice(body["amount"] * 1_000).bolt11
        self.quotes[id_] = {"quote": id_, "request": bolt11, "state": "UNPAID", "amount": body["amount"]}
        return self.quotes[id_]

    def get_mint_quote(self, words, body):
        return self.quotes[words[3]]

    def paid(self, bolt11):
        for quote in self.quotes.values():
            if quote["request"] == bolt11:
                quote["state"] = "PAID"

    def post_mint_bolt11(self, words, body):
        quote = self.quotes[body["quote"]]
        if quote["state"] != "PAID":
            raise RefusedError(ISSUED if quote["state"] == "ISSUED" else 20001)
        quote["state"] = "ISSUED"
        return self._sign(body["outputs"])

    def post_melt_quote(self, words, body):
        id_, amount_msat = os.urandom(8).hex(), invoices.decode(body["request"]).amount_msat
        fee_sat = self.melt_fees_sat.pop(0) if self.melt_fees_sat else 0
        self.quotes[id_] = {"quote": id_, "request": "", "amount": amount_msat // 1_000, "fee_reserve": fee_sat}
        return {**self.quotes[id_], "state": "UNPAID"}

    def post_melt_bolt11(self, words, body):
        if self.melt_state == "PAID":
            self._spend(body["inputs"], [])
        return {**self.quotes[body["quote"]], "state": self.melt_state}

    # Ecash

    def post_swap(self, words, body):
        if any(one["secret"] in self.spent for one in body["inputs"]):
            raise RefusedError(SPENT)
        if any(one["B_"] in self.signed for one in body["outputs"]):
            raise RefusedError(SIGNED)
        if not all(self._signs_by(one["id"]) for one in body["outputs"]):
            raise RefusedError(RETIRED)
        self._spend(body["inputs"], body["outputs"])
        return self._sign(body["outputs"])

    def post_checkstate(self, words, body):
        spent = {hash_to_curve(secret.encode()) for secret in self.spent}
        states = ((y, self.state_of_all or ("SPENT" if y in spent else "UNSPENT")) for y in body["Ys"])
        return {"states": [{"Y": y, "state": state} for y, state in states]}

    def post_restore(self, words, body):
        found = [one for one in body["outputs"] if one["B_"] in self.signed]
        return {"outputs": found, "signatures": [self.signed[one["B_"]] for one in found]}

    def _sign(self, outputs):
        for one in outputs:
            key, b = self.keys[one["amount"]], PublicKey(bytes.fromhex(one["B_"]))
            c, p = b.multiply(key.secret), PrivateKey()
            points = (p.public_key, b.multiply(p.secret), key.public_key, c)
            e = hashlib.sha256("".join(one.format(compressed=False).hex() for one in points).encode()).digest()
            s = (
                int.from_bytes(p.secret, "big") + int.from_bytes(e, "big") * int.from_bytes(key.secret, "big")
            ) % _ORDER
            proof = {"e": e.hex(), "s": s.to_bytes(32, "big").hex()}
            self.signed[one["B_"]] = {
                "amount": one["amount"],
                "id": self.id,
                "C_": c.format().hex(),
                "dleq": proof,
            }
        return {"signatures": [self.signed[one["B_"]] for one in outputs]}

    def _spend(self, inputs, outputs):
        if any(one["secret"] in self.spent for one in inputs):
            raise RefusedError(SPENT)
        whole = "".join(one["secret"] + one["C"] for one in inputs)
        whole += "".join(f"{one['amount']}{one['B_']}" for one in outputs)
        for one in inputs:
            if one["secret"].startswith("["):
                lock = json.loads(one["secret"])[1]
                tags = {tag[0]: tag[1:] for tag in lock["tags"]}
                is_all = tags["sigflag"] == ["SIG_ALL"]
                _check(lock, tags, whole if is_all else one["secret"], (inputs[0] if is_all else one).get("witness"))
        self.spent |= {one["secret"] for one in inputs}


def _check(lock, tags, text, witness):
    digest = hashlib.sha256(text.encode()).digest()
    signatures = [bytes.fromhex(one) for one in json.loads(witness or '{"signatures": []}')["signatures"]]
    signers = {
        key
        for key in (lock["data"], *tags.get("pubkeys", []))
        if any(verify(key[2:], digest, one) for one in signatures)
    }
    if len(signers) >= int(tags.get("n_sigs", ["1"])[0]):
        return
    is_late = "locktime" in tags and int(tags["locktime"][0]) <= time.time()
    if not (is_late and any(verify(tags["refund"][0][2:], digest, one) for one in signatures)):
        raise RefusedError(WRONG_LOCK)


def new_invoice(amount_msat):
    return invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=amount_msat,
        payment_hash=os.urandom(32).hex(),
        created_at_s=int(time.time()),
        expiry_s=600,
        description="x",
    )


class PlannedWallet:
    """Pays the mint's invoices as `states` says, in order, then settles them all."""

    def __init__(self, mint):
        self.mint, self.states, self.paid, self.asked_msat = mint, [], [], []

    async def pay(self, bolt11, *, max_fee_msat, timeout_s=60.0):
        state = self.states.pop(0) if self.states else "settled"
        self.paid.append(bolt11)
        if state == "settled":
            self.mint.paid(bolt11)
        invoice = invoices.decode(bolt11)
        return Transfer(invoice.payment_hash, "out", state, invoice.amount_msat, 0, None, 0, "no route")

    async def invoice(self, amount_msat, *, description, expiry_s):
        self.asked_msat.append(amount_msat)
        return new_invoice(amount_msat)


@contextlib.asynccontextmanager
async def serve():
    """A MintService, with its `url`."""
    mint, app = MintService(), web.Application()
    app.router.add_route("*", "/{path:.*}", mint.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    mint.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield mint
    finally:
        await runner.cleanup()
