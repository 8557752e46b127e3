"""A market that only trains, as processes of this machine: relay, simulated Lightning network, providers with [train].

Nobody runs its committee: rounds of training have no epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from processes.market import NODEWIRE, SIMNET, Market, Provider, ProviderSetup, Stock
from processes.progress import say

LEAST_MSAT = 7_001
DEPOSIT_PPM = 200_000


class Trainers(Market):
    """`providers` of them, each with `concurrency` warm workers of one thread."""

    def __init__(
        self,
        folder: Path,
        *,
        providers: int,
        concurrency: int = 1,
        worker_memory: str = "600MB",
        train_lines: Sequence[str] = (),
        program: Sequence[str] = NODEWIRE,
    ) -> None:
        """`train_lines`: further lines of every provider's [train]."""
        super().__init__(
            folder,
            providers=0,
            stock=Stock(models=()),
            setup=ProviderSetup(provider_lines=lambda provider: ("pow_bits = 4",), worker_memory=worker_memory),
            program=program,
        )
        self._trainers, self._concurrency, self._train_lines = providers, concurrency, tuple(train_lines)

    async def _start(self) -> None:
        say(f"a relay with its blob store, a Lightning network, {self._trainers} trainers")
        self.folder.mkdir(parents=True, exist_ok=True)
        relay, simnet = await asyncio.gather(
            self.daemon("relay", "relay", "--port", "0", "--db", self._at("relay.db"), "--blobs", self._at("blobs")),
            self.daemon("simnet", "--port", "0", "--db", self._at("simnet.db"), "--faucet", program=SIMNET),
        )
        self.relay, self.blossom, self.simnet = relay["url"], relay["blossom"], simnet["url"]
        where = ("--relay", self.relay, "--blossom", self.blossom)
        founded = await self.command("committee", "create", self._at("committee"), "--oracles", "4", *where)
        self.committee = founded["address"]
        for _ in range(self._trainers):
            await self._add_trainer()
        await asyncio.gather(*(self.start_provider(name) for name in self.providers))

    async def _add_trainer(self) -> Provider:
        provider = await self.add_provider([])
        lines = ["[train]", "msat_per_pflop = 1", f"least_msat = {LEAST_MSAT}", f"deposit_ppm = {DEPOSIT_PPM}"]
        lines += [f"concurrency = {self._concurrency}", *self._train_lines]
        provider.config.write_text(provider.config.read_text() + "\n".join(lines) + "\n")
        return provider

    def pids(self) -> list[int]:
        """Of every daemon that runs."""
        return [process.pid for process in self.processes.values() if process.returncode is None]
