"""What the stand-ins for wallets' services share: a server, the account behind it, faults, and the documented API."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time

from aiohttp import web

from nodewire.errors import NotFound
from nodewire.pay.lightning import invoices
from simnet.wallet import SimWallet
from tests.pay.wallets.services.recordings import Recording


class StandIn:
    """A service over one account of the simulated network. What it is asked and answers fits its documentation."""

    recorded = ""
    """The name of its recording."""

    def __init__(self, wallet: SimWallet) -> None:
        self.wallet = wallet
        self.documented = Recording(self.recorded)
        self.secret = hashlib.sha256(wallet._token.encode()).hexdigest()
        self.node = "02" + hashlib.sha256(self.secret.encode()).hexdigest()
        self.url = ""
        self.ssl = None
        self.drops = 0
        """How many answers to payments are lost, after these have been made."""
        self.swallows = 0
        """How many payments it is told to make, and never begins, and never answers."""
        self.forbidden: set[str] = set()
        """Of calls that the secret does not permit."""
        self.told: list[str] = []
        """The payment hashes that it was told to pay, in order."""
        self.asked: list[str] = []
        self.made: dict[str, invoices.Invoice] = {}
        """Its own invoices, in the order in which they were made."""
        self.outgoing: dict[str, invoices.Invoice] = {}
        self.came: list[str] = []
        """Its invoices that have settled, in order."""
        self.changed = asyncio.Condition()

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    def refusal(self, request: web.Request) -> web.Response | None:
        """Its answer to who shows no secret, or one that does not permit the call."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def serving(self):
        @web.middleware
        async def guard(request, handler):
            self.asked.append(f"{request.method} {request.path}")
            return self.refusal(request) or await handler(request)

        app = web.Application(middlewares=[guard])
        app.add_routes(self.routes())
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.ssl).start()
        self.url = f"http{'s' if self.ssl else ''}://127.0.0.1:{runner.addresses[0][1]}"
        listening = asyncio.create_task(self._listen())
        try:
            yield self
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await runner.cleanup()

    async def _listen(self):
        async for receipt in self.wallet.settled():
            async with self.changed:
                self.came.append(receipt.payment_hash)
                self.changed.notify_all()

    async def issue(self, amount_msat, description_hash, expiry_s, **more):
        """The invoice that the account makes, as `made` has it."""
        asked = {"amount_msat": amount_msat, "description_hash": description_hash, "expiry_s": expiry_s, **more}
        found = invoices.decode((await self.wallet.ask("POST", "/v1/invoices", asked))["bolt11"])
        self.made[found.payment_hash] = found
        return found

    async def begin(self, bolt11, max_fee_msat, request):
        """Pay, and wait for the end. None is its answer if it is to be lost or never comes."""
        invoice = invoices.decode(bolt11)
        self.told.append(invoice.payment_hash)
        if self.swallows:
            self.swallows -= 1
            await asyncio.sleep(3_600)
        self.outgoing[invoice.payment_hash] = invoice
        paid = await self.wallet.pay(bolt11, max_fee_msat=max_fee_msat, timeout_s=3_600)
        if self.drops:
            self.drops -= 1
            request.transport.abort()
        return paid

    async def outgoing_state(self, payment_hash):
        """The account's record of a payment of `outgoing`; None if it is about to be made."""
        try:
            return await self.wallet.lookup(payment_hash, "out")
        except NotFound:
            return None


def is_over(invoice):
    return invoice.is_expired(time.time())
