"""Payments over three real Lightning nodes, whose every party dies: `python -m bench.market.chaos_pay_nodes FOLDER
[--json] [--quick] [--seed N] [--jobs N] [--scale S]`. `make lightning` runs it.

As `bench.market.chaos_pay`, but for the money. The customer has the wallet of node A, the provider that of C, and B
forwards (`tools.lightning`). A node that is drawn dies by SIGKILL at a moment that is drawn, and is started again. The
books are compared with what the nodes themselves say of their payments.

Figures, beside those of chaos_pay:
- died: of the nodes each by its name.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.market.chaos_pay import LATER, Found, Moved, Trial
from bench.report import Report, run
from bench.tools.pay_roles import Account, Setup
from processes.market import free_port
from processes.progress import say
from simnet.conditions import Conditions
from tools.lightning.network import NODES, Network

JOBS, QUICK_JOBS = 20, 3
LIFE_S = 3.0
"""How long the nodes are left alone between two deaths, and longer each time that no job has ended meanwhile. A payment
takes .6 s, and channels are back after some seconds."""
PATIENCE_S = 1_800.0


class NodesTrial(Trial):
    """One customer at A, one provider at C, and B between them, until all jobs are bought."""

    def __init__(self, setup: Setup, network: Network, patience_s: float) -> None:
        super().__init__(setup, patience_s)
        self._network = network
        self._had_msat: tuple[int, int] = (0, 0)
        self._known: set[str] = set()
        """Payments of earlier runs."""

    async def _open_accounts(self) -> None:
        urls = {node: self._network.node(node) for node in "ac"}
        accounts = [Account(one.url, one.password, one.user) for one in urls.values()]
        self._setup = replace(self._setup, accounts=(accounts[0], accounts[1]))
        self._had_msat = await self._balances_msat()
        self._known = {*self._paid("a"), *self._paid("c")}

    async def _keep_network(self) -> None:
        while not self._setup.accounts:  # noqa: ASYNC110 - they are opened by the same loop
            await asyncio.sleep(0.05)
        life_s = LIFE_S
        while not self._is_calm:
            victim, ended_before = self._rng.choice(NODES), self._count_ended()
            await asyncio.sleep(life_s * (0.2 + 1.6 * self._rng.random()))
            life_s = LIFE_S if self._count_ended() > ended_before else life_s * LATER
            if not self._is_calm:
                self._network.daemon(victim).kill()
                self._killed[f"network, at a moment, {victim}"] += 1
                await asyncio.to_thread(self._network.start_node, victim)
        await asyncio.Event().wait()

    async def _moved(self, found: Found) -> Moved:
        for node in NODES:
            await asyncio.to_thread(self._network.start_node, node)
            await asyncio.to_thread(self._network.wait_ready, node)
        now_msat, paid = await self._balances_msat(), self._paid("a")
        settled = {one: msat for one, msat in self._paid("c").items() if one not in self._known}
        found.lost["payments that A and C have"] = len(settled.keys() ^ (paid.keys() - self._known))
        return Moved(self._had_msat[0] - now_msat[0], now_msat[1] - self._had_msat[1], settled)

    async def _balances_msat(self) -> tuple[int, int]:
        found = []
        for account in self._setup.accounts:
            wallet = account.open()
            found.append(await wallet.balance_msat())
            await wallet.close()
        return found[0], found[1]

    def _paid(self, node: str) -> Mapping[str, int]:
        """What Electrum itself says of the payments over a node that are settled, in msat by payment hash."""
        listed: list[dict[str, Any]] = self._network.node(node).ask("lightning_history")
        return {
            one["payment_hash"]: abs(round(float(one["amount_msat"]))) for one in listed if one.get("type") == "payment"
        }


async def measure(report: Report, options: argparse.Namespace) -> None:
    jobs = options.jobs or (QUICK_JOBS if report.quick else JOBS)
    network = Network(options.network)
    folder = Path(tempfile.mkdtemp(prefix="nodewire-chaos-pay-nodes-"))
    ports = 0, free_port(), free_port()
    setup = Setup(folder, report.seed, jobs, options.scale, Conditions(), ports)
    try:
        await asyncio.to_thread(network.up)
        say(f"{jobs} jobs over three nodes")
        found = await NodesTrial(setup, network, PATIENCE_S).run()
    finally:
        shutil.rmtree(folder)
    report.arms["nodes"] = asdict(found) | {"lost_msat": found.lost_msat}
    report.line("jobs", found.jobs if found.ended else 0, "==", jobs)
    report.line("double_paid_msat", found.double_paid_msat, "==", 0)
    report.line("lost_msat", found.lost_msat, "==", 0)
    report.line("surprises", sum(found.surprises.values()), "==", 0)
    report.line("payments", found.payments, ">", 0)
    for victim in ("customer", "provider", "network"):
        report.line(f"{victim}_killed", sum(n for name, n in found.died.items() if name.startswith(victim)), ">", 0)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("network", type=Path, help="the folder of tools.lightning; without a network it gets one")
    parser.add_argument("--jobs", type=int, default=0, help=f"{JOBS}, or {QUICK_JOBS} with --quick")
    parser.add_argument("--scale", type=float, default=0.25, help="of every wait of the customer and the provider")


if __name__ == "__main__":
    run("chaos_pay_nodes", __doc__, measure, add=_options)
