"""A real Bitcoin node on a chain of its own (regtest), where NODEWIRE_BITCOIND names its program."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nodewire.errors import NodewireError
from nodewire.pay.bitcoin.node import BitcoinNode
from nodewire.pay.bitcoin.taproot import TaprootOutput

PROGRAM = os.environ.get("NODEWIRE_BITCOIND", "")
needs_bitcoind = pytest.mark.skipif(not PROGRAM, reason="NODEWIRE_BITCOIND names no bitcoind; `make bonds` sets it up")
START_S, PASSWORD = 120.0, "secret-word"


class run_bitcoind:  # noqa: N801 - a block is opened with it, as with a function
    """One node on loopback with a wallet that has 50 BTC."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._folder = folder
        self.url = f"http://user:{PASSWORD}@127.0.0.1:{self._port}/wallet/funds"
        self.file = folder / "node.url"
        self.file.write_text(self.url)

    def __enter__(self) -> run_bitcoind:
        self._log = (self._folder / "log").open("wb")
        options = ["-regtest", f"-datadir={self._folder}", f"-rpcport={self._port}", "-rpcuser=user", "-dbcache=8"]
        options += [f"-rpcpassword={PASSWORD}", "-listen=0", "-dnsseed=0", "-fallbackfee=0.00002", "-par=1"]
        self._process = subprocess.Popen([PROGRAM, *options], stdout=self._log, stderr=self._log)
        asyncio.run(self._started())
        return self

    async def _started(self) -> None:
        chain, until = Chain(self), time.monotonic() + START_S
        while True:
            try:
                await chain.raw("createwallet", "funds")
                break
            except NodewireError as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise AssertionError((self._folder / "log").read_text()) from error
                await asyncio.sleep(0.2)
        await chain.mine(101)
        await chain.node.close()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Chain:
    """What a test does with a node's chain; its clock goes on by `pass_to` alone once that was called."""

    def __init__(self, process: run_bitcoind) -> None:
        self.node = BitcoinNode(process.url)

    async def raw(self, method: str, *params: object) -> Any:
        return await self.node._ask(method, *params)

    async def mine(self, blocks: int = 1) -> None:
        await self.raw("generatetoaddress", blocks, await self.raw("getnewaddress"))

    async def pass_to(self, at_s: int) -> None:
        """Let the chain's time be after `at_s`: it is the median of eleven blocks'."""
        await self.raw("setmocktime", at_s + 1)
        await self.mine(12)

    async def received_sat(self, output: TaprootOutput) -> int:
        return sum((await self.node.unspent(output)).values())
