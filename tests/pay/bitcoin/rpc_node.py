"""A Bitcoin node's JSON-RPC in this process: each method answers what the test wants, and sends move outputs."""

from __future__ import annotations

import contextlib

from aiohttp import web

from nodewire.pay.bitcoin.node import BitcoinNode


class RpcError(Exception):
    def __init__(self, code, text=""):
        super().__init__(text)
        self.code, self.text = code, text


class RpcNode:
    """`answers` by method: a value, an RpcError, a web.Response, or a function of the parameters that gives one.

    `unspent`: (satoshis, script's hex) by (txid, index), which "gettxout" tells.
    """

    def __init__(self):
        self.unspent, self.asked, self.headers = {}, [], {}
        self.answers = {
            "getblockchaininfo": {"chain": "regtest", "mediantime": 1_700_000_000},
            "gettxout": self._output,
            "estimatesmartfee": {},
        }

    def _output(self, txid, index, _):
        if (txid, index) not in self.unspent:
            return None
        sat, script = self.unspent[txid, index]
        return {"value": sat / 100_000_000, "scriptPubKey": {"hex": script}, "confirmations": 9}

    async def handle(self, request):
        body, self.headers = await request.json(), request.headers
        method, params = body["method"], body["params"]
        self.asked.append((method, *params))
        said = self.answers[method]
        try:
            said = said(*params) if callable(said) else said
            if isinstance(said, RpcError):
                raise said
        except RpcError as error:
            return web.json_response({"result": None, "error": {"code": error.code, "message": error.text}}, status=500)
        return said if isinstance(said, web.Response) else web.json_response({"result": said, "error": None})


@contextlib.asynccontextmanager
async def serve():
    """An RpcNode, and `BitcoinNode`s that ask it by `.open()`."""
    node = RpcNode()
    app = web.Application()
    app.router.add_post("/{path:.*}", node.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    opened = []

    def open_one(path=""):
        opened.append(BitcoinNode(f"http://user:word@127.0.0.1:{runner.addresses[0][1]}{path}"))
        return opened[-1]

    node.open = open_one
    try:
        yield node
    finally:
        for one in opened:
            await one.close()
        await runner.cleanup()
