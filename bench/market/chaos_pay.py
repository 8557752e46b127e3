"""Payments whose every party dies: `python -m bench.market.chaos_pay [--json] [--quick] [--seed N] [--scale S]`, or
`make chaos-pay`.

A customer, a provider and the simulated Lightning network are three processes: real payer, till, ledgers, LNURL
endpoint and wallets in whole satoshis (`bench.tools.pay_roles`). The customer buys seeded jobs, six at a time. Payments
take 0.2 to 5 s, some find no route, some are stuck for longer than the payer waits, and half of these go back. Each
life of a process ends by SIGKILL, before a step of its books that is drawn, or at a moment that is drawn from outside.
When all jobs are bought, the customer pays what it owes, and the books are compared with the wallets.

`--scale` shortens payments, waits and lives of invoices alike. Then fewer jobs while many payments are stuck: the real
ledger comes through, and each mutant of it must not. It is caught by the comparison, or since its jobs do not end.

Figures:
- double_paid_msat: what debts and dues were paid beyond their amounts, and payments that no book has.
- lost_msat: differences between what customer, provider and both wallets say, in all.
- surprises: errors at the customer that no death and no failed payment explains.
- died: how many processes died, by role and by the step that would have come next.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import Report, run
from bench.tools.pay_roles import LEDGERS, Account, Setup, live
from nodewire.errors import NodewireError
from nodewire.pay.accounts.ledger import Ledger
from processes.market import free_port
from processes.progress import say
from simnet.conditions import Conditions
from simnet.service import Simnet
from simnet.wallet import SimWallet

JOBS, QUICK_JOBS, MUTANT_JOBS = 1_000, 30, 30
RICH_MSAT = 100_000_000
LEAST_S, MOST_S, STUCK_S = 0.2, 5.0, 90.0
"""How long payments take, and how long a stuck one is held beyond that: longer than a payer waits."""
FAILING_PPM, STUCK_PPM = 120_000, 40_000
MUTANT_STUCK_PPM = 400_000
"""Payments of a mutant's run: what it forgets matters while they are under way."""
MOST_STEPS = 60
"""A process that dies at a step does so at one of so many."""
FIRST_S, LATER = 1.0, 1.3
"""A process lives for about so long; that much longer each time that no job has ended meanwhile."""
ROLES = ("network", "provider", "customer")
PRELOADED = ["bench.tools.pay_roles", "bench.report", "processes.market", "simnet.service", "nodewire.metrics.endpoint"]
"""What a life needs: it is forked from a process that has it."""
PATIENCE_S = 1_800.0
"""After which a run that does not end is given up, and not ok."""
MUTANT_PATIENCE, MUTANT_MORE_S = 4.0, 20.0
"""A mutant may stand still: it is given up after so many times what the real ledger took for the same, and more."""


@dataclass(slots=True)
class Found:
    """What the books and wallets said in the end."""

    jobs: int
    double_paid_msat: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    """Differences in msat that should be 0, by what they are between."""
    payments: int = 0
    paid_msat: int = 0
    fees_msat: int = 0
    no_route: int = 0
    stuck: int = 0
    stuck_and_back: int = 0
    forgiven: int = 0
    """Debts of which the payee said that they were paid."""
    surprises: dict[str, int] = field(default_factory=dict)
    """Errors that no death and no failed payment explains."""
    receipts: int = 0
    died: dict[str, int] = field(default_factory=dict)
    ended: bool = True
    error: str = ""
    seconds: float = 0.0

    @property
    def lost_msat(self) -> int:
        return sum(map(abs, self.lost.values()))

    @property
    def is_clean(self) -> bool:
        return self.ended and not self.error and not self.lost_msat and not self.double_paid_msat


class Moved(NamedTuple):
    """What left the customer's wallet, and what came into the provider's; by payment hash what the provider got."""

    spent_msat: int
    came_msat: int
    settled: Mapping[str, int]


class Trial:
    """One customer, one provider, one network, until all jobs are bought."""

    def __init__(self, setup: Setup, patience_s: float) -> None:
        self._setup, self._patience_s = setup, patience_s
        self._rng = random.Random(f"{setup.seed}/deaths")
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(PRELOADED)
        self._killed: Counter[str] = Counter()
        self._is_calm = False
        """Whether nobody is killed any more."""

    async def run(self) -> Found:
        began = time.monotonic()
        found = Found(self._setup.jobs)
        living = {"network": asyncio.create_task(self._keep_network())}
        try:
            await self._open_accounts()
            living |= {role: asyncio.create_task(self._lives(role)) for role in ("provider", "customer")}
            customer = living["customer"]
            async with asyncio.timeout(self._patience_s):
                await asyncio.wait(living.values(), return_when=asyncio.FIRST_COMPLETED)
                for ended in living.values():  # of the others none ends but by its own error
                    if ended.done():
                        ended.result()
                await customer
                self._is_calm = True  # what the provider still has to hear and to tell
                await self._until_heard()
        except TimeoutError:
            found.ended = False
        finally:
            for task in living.values():
                task.cancel()
            await asyncio.gather(*living.values(), return_exceptions=True)
        await self._judge(found)
        found.seconds = round(time.monotonic() - began, 1)
        return found

    async def _keep_network(self) -> None:
        """Have what moves the money die and come back until the end."""
        await self._lives("network")

    async def _open_accounts(self) -> None:
        accounts = []
        for name, msat in (("customer", RICH_MSAT), ("provider", 0)):
            while True:
                try:
                    wallet, token = await SimWallet.open_account(self._setup.network_url, name, msat)
                    break
                except NodewireError:  # it starts, or it has died
                    await asyncio.sleep(0.1)
            await wallet.close()
            accounts.append(Account(self._setup.network_url, token))
        self._setup = replace(self._setup, accounts=(accounts[0], accounts[1]))

    async def _lives(self, role: str) -> None:
        """One life after another, until one ends by itself."""
        life_s = FIRST_S
        while True:
            by_step = not self._is_calm and self._rng.random() < 0.5
            # Of a few steps as often as of many, so that the first ones are met as well.
            last = int(MOST_STEPS ** self._rng.random()) - 1 if by_step else -1
            after_s, ended_before = life_s * (0.2 + 1.6 * self._rng.random()), self._count_ended()
            process = self._forks.Process(target=live, args=(role, self._setup, last), daemon=True)
            process.start()
            try:
                ended = await self._watched(process, after_s)
            finally:
                process.kill()
                process.join()
            life_s = FIRST_S if self._count_ended() > ended_before else life_s * LATER
            if not ended:
                self._killed[f"{role}, at a moment"] += 1
            elif process.exitcode == 0 and role == "customer":
                return
            elif process.exitcode != -signal.SIGKILL:
                raise RuntimeError(f"the {role} ended with {process.exitcode}; {self._log(role)[-600:]}")

    def _count_ended(self) -> int:
        """How many jobs the customer's book has for ended."""
        try:
            return int(self._rows("customer", "SELECT count(*) FROM ended")[0][0])
        except sqlite3.OperationalError:  # it has none yet
            return 0

    async def _watched(self, process: ForkServerProcess, after_s: float) -> bool:
        """Whether a process has ended by itself; False: it is time to kill it."""
        until = time.monotonic() + after_s
        while process.is_alive():
            if not self._is_calm and time.monotonic() > until:
                return False
            await asyncio.sleep(0.02)
        return True

    async def _until_heard(self) -> None:
        """Return when the provider has counted and receipted every payment of the customer's."""
        wanted = self._rows("customer", "SELECT count(*) FROM payments WHERE state = 'paid'")[0][0]
        signed = "SELECT count(*) FROM quotes WHERE state = 'receipted'"
        waiting = "SELECT count(*) FROM receipt_relays WHERE state = 'waiting'"
        while self._rows("provider", signed)[0][0] < wanted or self._rows("provider", waiting)[0][0]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    def _rows(self, role: str, sql: str) -> list[tuple[Any, ...]]:
        path = self._setup.folder / f"{role}.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db:
            return db.execute(sql).fetchall()

    def _log(self, role: str) -> str:
        path = self._setup.folder / f"{role}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    async def _judge(self, found: Found) -> None:
        """Compare the books of both sides with each other, with both wallets, and with what was delivered."""
        setup, folder = self._setup, self._setup.folder
        money = await self._moved(found)
        theirs, own = Ledger(folder / "provider.db"), Ledger(folder / "customer.db")
        tab, spent = own.tab(setup.provider.public), own.spent()
        customer = setup.customer.public
        balance_msat, owed_msat = theirs.balance_msat(customer), theirs.owed_msat(customer)
        delivered_msat = sum(sum(setup.amounts(number)) for number in range(setup.jobs))
        paid = "SELECT payment_hash, coalesce(fee_msat, 0) FROM payments WHERE state = 'paid'"
        known = dict(self._rows("customer", paid))
        fees_msat = sum(known.values())
        found.lost |= {
            "the customer's wallet and its book": money.spent_msat - tab.paid_msat - fees_msat,
            "the provider's wallet and its book": money.came_msat - theirs.paid_msat(customer),
            "what was paid, and what came": tab.paid_msat - theirs.paid_msat(customer),
            "both tabs": (tab.owed_msat - tab.ahead_msat) - (owed_msat - balance_msat),
            "what is owed in the end": owed_msat,
            "what was delivered, and the provider's earnings": delivered_msat - theirs.earned_msat() - owed_msat,
            "what was paid, and the provider's earnings": theirs.paid_msat(customer)
            - balance_msat
            - theirs.earned_msat(),
        }
        beyond = "SELECT sum(msat) - max(debts.amount_msat) AS more FROM parts JOIN debts USING (job, payee, chunk, "
        beyond += "attempt) JOIN payments USING (payment_hash) WHERE payments.state = 'paid' "
        beyond += "GROUP BY debts.job, debts.payee, debts.chunk, debts.attempt HAVING more > 0"
        settled_msat = money.settled
        found.double_paid_msat = sum(msat for payment_hash, msat in settled_msat.items() if payment_hash not in known)
        found.double_paid_msat += sum(more for (more,) in self._rows("customer", beyond))
        found.double_paid_msat += max(0, sum(settled_msat.values()) - delivered_msat - tab.ahead_msat)
        found.payments, found.paid_msat, found.fees_msat = len(settled_msat), tab.paid_msat, spent.fees_msat
        found.forgiven = len(_lines(folder / "forgiven"))
        found.surprises = dict(Counter(line[:120] for line in _lines(folder / "surprises")))
        found.receipts = len(set(_lines(folder / "receipts")))
        found.lost["receipts beside payments"] = found.receipts - len(settled_msat)
        deaths = [json.loads(line) for line in _lines(folder / "deaths.jsonl")]
        found.died = dict(sorted((self._killed + Counter(f"{d['role']}, before {d['step']}" for d in deaths)).items()))
        for book in (theirs, own):
            book.close()

    async def _moved(self, found: Found) -> Moved:
        """By the network's own books. What else only they say is put into `found`."""
        setup = self._setup
        simnet = Simnet(setup.folder / "simnet.db", conditions=setup.conditions)
        payer, payee = (simnet.account_of(account.secret) for account in setup.accounts)
        state = simnet.state
        found.lost["the network's money"] = state.issued_msat - sum(state.balances.values()) - state.held_msat()
        settled = [one for one in state.invoices.values() if one.payer == payer and one.phase == "settled"]
        refused = list(state.refusals.values())
        tried = [*(one.payment_hash for one in settled), *(one.payment_hash for one in refused)]
        fates = [setup.conditions.fate(payment_hash) for payment_hash in tried]
        found.no_route = sum("no route" in one.reason for one in refused)
        found.stuck = sum(fate.is_stuck for fate in fates)
        found.stuck_and_back = sum("went back" in one.reason for one in refused)
        moved = Moved(
            RICH_MSAT - simnet.balance_msat(payer),
            simnet.balance_msat(payee),
            {one.payment_hash: one.amount_msat for one in settled},
        )
        simnet.close()
        return moved


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def measure(report: Report, options: argparse.Namespace) -> None:
    jobs = options.jobs or (QUICK_JOBS if report.quick else JOBS)
    scale = options.scale
    usual = Conditions(LEAST_S * scale, MOST_S * scale, FAILING_PPM, STUCK_PPM, STUCK_S * scale)
    folders = options.keep or Path(tempfile.mkdtemp(prefix="nodewire-chaos-pay-"))
    try:
        await _measure(report, Setup(folders, report.seed, jobs, scale, usual, (0, 0, 0)), options)
    finally:
        if options.keep is None:
            shutil.rmtree(folders)


async def _measure(report: Report, setup: Setup, options: argparse.Namespace) -> None:
    jobs = setup.jobs
    found = await _tried(setup, PATIENCE_S)
    report.arms["chaos"] = {"scale": setup.scale, **_document(found)}
    # Many are stuck here. The real ledger must come through, and each mutant must not, with time to spare.
    stuck = replace(setup, jobs=MUTANT_JOBS, conditions=replace(setup.conditions, stuck_ppm=MUTANT_STUCK_PPM))
    control = await _tried(replace(stuck, folder=setup.folder / "control"), PATIENCE_S)
    report.arms["control"] = _document(control)
    mutants = [name for name in LEDGERS if name]
    patience_s = MUTANT_PATIENCE * control.seconds + MUTANT_MORE_S
    tried = await asyncio.gather(*(_tried(replace(stuck, mutant=name), patience_s) for name in mutants))
    for name, one in zip(mutants, tried, strict=True):
        report.arms[f"mutant {name}"] = _document(one)
    _judge(report, jobs, found, control)
    report.line("control_is_clean", int(control.is_clean), "==", 1)
    report.line("mutants_caught", sum(not one.is_clean for one in tried), "==", len(mutants))


def _judge(report: Report, jobs: int, found: Found, control: Found) -> None:
    report.line("jobs", found.jobs if found.ended else 0, "==", jobs)
    report.line("double_paid_msat", found.double_paid_msat, "==", 0)
    report.line("lost_msat", found.lost_msat, "==", 0)
    report.line("surprises", sum(found.surprises.values()), "==", 0)
    for role in ROLES:
        for how in ("at a moment", "before"):
            count = sum(n for name, n in found.died.items() if name.startswith(f"{role}, {how}"))
            report.line(f"{role}_killed_{how.replace(' ', '_')}", count, ">", 0)
    report.line("no_route", found.no_route + control.no_route, ">", 0)
    report.line("stuck", found.stuck + control.stuck, ">", 0)


async def _tried(setup: Setup, patience_s: float) -> Found:
    named = setup.mutant or "the real ledger"
    say(f"{setup.jobs} jobs with {named}")
    folder = setup.folder / (setup.mutant or "real")
    folder.mkdir(parents=True)
    ports = free_port(), free_port(), free_port()
    found = await Trial(replace(setup, folder=folder, ports=ports), patience_s).run()
    say(
        f"{named}: {found.payments} payments, {sum(found.died.values())} deaths, {found.no_route} without a route, "
        f"{found.stuck} stuck; double paid {found.double_paid_msat} msat, lost {found.lost_msat} msat"
        f"{'' if found.ended else ', given up'}; {found.seconds} s"
    )
    return found


def _document(found: Found) -> dict[str, Any]:
    return {
        "jobs": found.jobs,
        "ended": found.ended,
        "error": found.error,
        "payments": found.payments,
        "paid_msat": found.paid_msat,
        "fees_msat": found.fees_msat,
        "double_paid_msat": found.double_paid_msat,
        "lost_msat": {name: msat for name, msat in found.lost.items() if msat},
        "no_route": found.no_route,
        "stuck": found.stuck,
        "stuck_and_back": found.stuck_and_back,
        "forgiven": found.forgiven,
        "surprises": found.surprises,
        "died": found.died,
        "seconds": found.seconds,
    }


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=0, help=f"{JOBS}, or {QUICK_JOBS} with --quick")
    parser.add_argument("--scale", type=float, default=0.05, help="of every time; 1 has payments take 0.2 to 5 s")
    parser.add_argument("--keep", type=Path, help="leave the books in this folder, which must be new")


if __name__ == "__main__":
    run("chaos_pay", __doc__, measure, add=_options)
