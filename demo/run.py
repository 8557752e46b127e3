"""`make demo`: a whole market on this machine, made of public commands and ordinary configuration files.

    python demo/run.py [--relay URL] [--report demo-report.json] [--stay]

Starts a relay with its blob store, a simulated Lightning network that also holds bonds, four oracles and six providers,
every one its own process with its own key; registers two real models: SmolLM2-135M-Instruct, which answers, and
all-MiniLM-L6-v2, which embeds sentences. A question is asked; a provider is killed in the middle of the answer
(`answer`), and another one cheats and is convicted (`cheating`). Everything is compared with a single process. Audits
every plan and writes what happened to `demo-report.json`. `--stay` leaves the market running to talk with. `--relay`
uses a relay that is already there for all events (blobs stay in ours).
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import shutil
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import NamedTuple

import dishonest_provider
import machines
import models
import summary
from answer import AnswerWithDeath, ask
from certified_list import Listing
from market import (
    CUSTOMER_MSAT,
    PROVIDERS,
    SIMNET,
    DemoFailure,
    Market,
    balance_msat,
    customer_config,
    key_of,
    provider_config,
    specializations,
    watcher_config,
    write_addresses,
)
from records import plaintext_hits, relay_events
from rich.markup import escape
from rich.table import Table
from screen import STARTED, Progress, note, out, sats, saying, step

from nodewire.nostr.keys import Keys

QUESTION = "What is the capital of France, and what can a visitor see there?"
TOKENS = 96
"""The most that an answer may have; it ends by itself before."""
MOST_ASKED = 4
"""Times, until somebody has died in the middle of an answer."""
LEAST_EPOCH_MS = 2_000
"""An epoch must do for an oracle to load a piece, since verdicts count in epochs. On a busy machine it is twice as long
as one process took to start."""
SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sunshine.",
    "Lightning payments settle in milliseconds.",
    "Paying over the Lightning network takes almost no time.",
]
INTRODUCTION = (
    "nodewire is a marketplace where strangers' computers run pieces of AI models. You will see a language model"
    " (SmolLM2-135M) answer a question, one of the machines that compute the answer die in the middle of it, and"
    " another machine cheat and be convicted.\n"
    f"{PROVIDERS} providers each hold a piece of the model and sell their work to a customer, and a relay carries their"
    " messages. Four oracles are the judges: they compute a sample of the work again, and three must agree to convict."
    " A seventh provider joins later and cheats; it loses its bond, which is a deposit. Here each is a process of its"
    " own on this computer, with a key of its own, as if it belonged to a stranger.\n"
    "The money is play money: sats (bitcoin's small unit; 1 sat is 1,000 msat) on a simulated Lightning network."
)


def nearest(vectors: list[list[float]]) -> list[int]:
    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    return [
        max((j for j in range(len(vectors)) if j != i), key=lambda j: dot(v, vectors[j])) for i, v in enumerate(vectors)
    ]


async def run(options: argparse.Namespace) -> int:
    # Closing the terminal or ending the job stops the market as Ctrl-C does.
    this = asyncio.current_task()
    assert this
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    folder = Path(options.folder).resolve()
    with Path(f"{folder}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"demo: one is running in {folder}; stop it first, or use --folder") from None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        market = Market(folder)
        try:
            return await Trade(market, options).run()
        finally:
            await market.stop()


def _pieces(registered: dict) -> str:
    before = " (by an earlier run)" if registered["was_kept"] else ""
    return f"{registered['name']} is cut into {len(registered['tasks'])} pieces{before}, which are uploaded"


async def found(market: Market, epoch_ms: int, where: list[str]) -> tuple[dict, dict]:
    """The committee, and the Lightning network that holds bonds for it."""
    folder = market.folder
    holder = Keys.from_file(folder / "holder.nsec").public
    created = await market.command(
        "committee", "create", str(folder / "committee"), "--oracles", "4",
        "--epoch-ms", str(epoch_ms), "--skew-ms", str(epoch_ms // 10), "--beat-ms", str(epoch_ms // 2),
        # Every chunk of a job that asks for it is computed again, where 5 % would do: one job shall show a catch.
        "--verify-rate", "100%", "--bond-holder", holder, *where,
    )  # fmt: skip
    note(f"a committee of {len(created['oracles'])} oracles is founded, with epochs of {epoch_ms / 1000:.1f} s")
    simnet = await market.daemon(
        "simnet", "--port", "0", "--db", str(folder / "simnet.db"), "--faucet", "--base-fee-msat", "0",
        "--key", str(folder / "holder.nsec"), "--committee", str(folder / "committee" / "committee.json"),
        program=SIMNET,
    )  # fmt: skip
    return created, simnet


class Check(NamedTuple):
    """`reason`: what is the case instead, where it is not ok."""

    text: str
    is_ok: bool
    reason: str


def _apart(ours: list[int], theirs: list[int]) -> str:
    """Where two sequences of tokens part."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"{len(ours)} tokens came, {len(theirs)} were expected; they part at number {at}"


def _answered(report: dict, answered: dict, alone: dict) -> list[Check]:
    """What must hold of the answer that lost a provider."""
    spent_msat, came_msat = report["customer_spent_msat"], report["paid_total_msat"] + report["fees_msat"]
    return [
        Check(
            f"after {answered['killed']}'s death the answer is, token by token, that of one machine",
            report["tokens_identical_after_failover"],
            _apart(answered["ids"], alone["ids"]),
        ),
        Check(
            "no machine held the whole model",
            report["most_held_percent"] < 100,
            f"one held {report['most_held_percent']} % of it",
        ),
        Check(
            "the sentences' vectors equal those of one process, to 0.00001",
            report["embedding_max_abs_diff"] <= 1e-5,
            f"they differ by up to {report['embedding_max_abs_diff']:.2e}",
        ),
        Check(
            "the customer spent exactly what providers and Lightning nodes on the way got",
            spent_msat == came_msat,
            f"it spent {sats(spent_msat)}, they got {sats(came_msat)}",
        ),
        Check(
            "no question, answer or secret stands readable on the relay",
            report["relay_plaintext_hits"] == 0,
            f"{report['relay_plaintext_hits']} do",
        ),
    ]


def _judged(
    report: dict, cheater: dishonest_provider.Cheater, came: dict, betrayed: dict, still_listed: str, alone: dict
) -> list[Check]:
    """What must hold of the second act."""
    hers = [one["outcome"] or "none" for one in betrayed["verdicts"] if one["provider"] == cheater.public]
    drawn = f"of {len(betrayed['verdicts'])} samples {len(hers)} were its work: {', '.join(hers) or 'none'}"
    slashed = [one["provider"] for one in came["slashed"]]
    return [
        Check(
            f"the cheat changed the numbers that {cheater.name} computed, by {report['cheat_altered_percent']:.1f} %",
            report["cheat_altered_percent"] > 0,
            f"{cheater.name} computed nothing, or what it left out changed nothing; see its log",
        ),
        Check(
            "the cheater was convicted, nobody else",
            came["convicted"] == [cheater.name],
            f"convicted: {', '.join(came['convicted']) or 'nobody'}; {drawn}",
        ),
        Check(
            "its bond was slashed, nobody else's",
            slashed == [cheater.name],
            f"slashed: {', '.join(slashed) or 'nobody'}; {drawn}",
        ),
        Check(
            "it lost more than it earned",
            report["cheater_net_msat"] < 0,
            f"it was paid {sats(came['received_msat'])} and lost {sats(came['lost_msat'])}",
        ),
        Check("the market lists it no more", not still_listed, still_listed),
        Check(
            "the text that the customer has in the end is, token by token, that of one machine",
            report["tokens_identical_after_repair"],
            _apart(betrayed["ids"], alone["ids"][: dishonest_provider.TOKENS]),
        ),
    ]


async def _alone(model: models.Model, folder: Path) -> dict:
    """The answer of one process that has the whole model, and the most memory that it has while it answers."""
    pids: list[int] = []
    most_bytes = 0

    async def came(_: str) -> None:
        nonlocal most_bytes
        most_bytes = max(most_bytes, machines.memory_bytes(pids[0]))

    done = await ask(QUESTION, ["--local", str(model.source), *models.DTYPE], TOKENS, folder / "alone.json", came, pids)
    return {**done, "memory_bytes": most_bytes}


class Trade:
    """The demo from its first process to its last line. Every method goes on from what those above it have left."""

    def __init__(self, market: Market, options: argparse.Namespace) -> None:
        self.market, self.options, self.folder = market, options, market.folder
        self.kept = Path(f"{options.folder}-pieces").resolve()

    async def run(self) -> int:
        out.print(INTRODUCTION, soft_wrap=True)
        await self.found()
        await self.serve()
        await self.first_act()
        async with Listing.open(watcher_config(self.market, self.common)) as listing:
            await self.second_act(listing)
        await self.books()
        is_ok = self.end()
        if self.options.stay:
            await self.stay()
        return 0 if is_ok else 1

    async def found(self) -> None:
        """Relay, committee, Lightning network, and two models on the market."""
        market, folder = self.market, self.folder
        step("a relay with its blob store, a committee of four oracles, a Lightning network that holds bonds")
        self.smollm2, self.minilm = models.smollm2(), models.minilm()
        database, blobs = str(folder / "relay.db"), str(folder / "blobs")
        begun_s = time.monotonic()
        relay = await market.daemon("relay", "relay", "--port", "0", "--db", database, "--blobs", blobs)
        epoch_ms = max(LEAST_EPOCH_MS, round(2000 * (time.monotonic() - begun_s)))
        self.common = {"relay": self.options.relay or relay["url"], "blossom": relay["blossom"]}
        where = ["--relay", self.common["relay"], "--blossom", self.common["blossom"]]
        (self.created, simnet), self.decoder, self.encoder = await asyncio.gather(
            found(market, epoch_ms, where),
            saying(models.register(market, self.smollm2, self.kept, where), _pieces),
            saying(models.register(market, self.minilm, self.kept, where), _pieces),
        )
        self.common |= {"committee": self.created["address"], "simnet": simnet["url"]}
        write_addresses(folder, self.common, {one["name"]: one["address"] for one in (self.decoder, self.encoder)})

    async def serve(self) -> None:
        """Oracles and providers, all of them ready."""
        market, common, model = self.market, self.common, self.decoder
        step(f"{PROVIDERS} providers load, verify and announce their pieces; nobody has two pieces of one model")
        note("a driver reads the question and picks each token; stages (in MiniLM: graphs) hold the layers between")
        seats, stalls = Progress("oracle", len(self.created["oracles"])), Progress("provider", PROVIDERS)
        files = [str(self.folder / "committee" / f"oracle-{i}" / "oracle.toml") for i in range(1, seats.total + 1)]
        oracles = [market.daemon(f"oracle-{i}", "oracle", "--config", file) for i, file in enumerate(files, start=1)]
        self.serves = specializations(model, self.encoder)
        configs = [provider_config(market, i, one, common) for i, one in enumerate(self.serves)]
        self.configs = await asyncio.gather(*configs)
        self.customer = await customer_config(market, common)
        self.public = key_of(self.customer.parent)
        providers = [market.daemon(f"provider-{i}", "provider", "--config", str(c)) for i, c in enumerate(self.configs)]
        ready = await asyncio.gather(*map(seats.after, oracles), *map(stalls.after, providers))
        self.names = {line["public"]: line["name"] for line in ready[seats.total :]}
        self.whole_bytes = machines.weights_bytes(model, [task["name"] for task in model["tasks"]])
        self.most_bytes = 0
        self.serving: dict[str, set[str]] = {}
        for line, one in zip(ready[seats.total :], self.serves, strict=True):
            tasks = [task for address, task, _ in one if address == model["address"]]
            for task in tasks:
                self.serving.setdefault(task, set()).add(line["name"])
            held_bytes = machines.weights_bytes(model, tasks)
            self.most_bytes = max(self.most_bytes, held_bytes)
            size = f" ({held_bytes / 1e6:.0f} of {self.whole_bytes / 1e6:.0f} MB)"
            held = (
                f"{', '.join(of)} of {name}{size if name == model['name'] else ''}"
                for name, of in sorted(line["serves"].items(), reverse=True)
            )
            out.print(f"  {line['name']} [dim]{line['public'][:8]}[/]  {'; '.join(held)}", soft_wrap=True)
        self.opened_msat = await self.balances_msat()

    async def balances_msat(self) -> dict[str, int]:
        """What the wallets of the first providers hold, by name."""
        held_msat = await asyncio.gather(*(balance_msat(self.common, config.parent) for config in self.configs))
        return {config.parent.name: msat for config, msat in zip(self.configs, held_msat, strict=True)}

    async def first_act(self) -> None:
        """The question, and a death in the middle of its answer."""
        step(f"the customer asks: [bold]{QUESTION}[/]")
        self.bought = ["--config", str(self.customer), "--model", self.decoder["address"]]
        for _ in range(MOST_ASKED):
            one = AnswerWithDeath(self.market, self.bought, self.public, self.common["relay"], self.names, self.serving)
            self.answered = answered = await one.ask(QUESTION, TOKENS)
            if answered["went_on"]:
                break
            note(f"{answered['killed']} had done its part when it died; it is started and asked again")
            await self.restart(answered["killed"])
        else:
            raise DemoFailure(f"the answer needed nobody who died, {MOST_ASKED} times")
        note(
            f"{answered['killed']} computed {answered['task']}; {answered['went_on']} took its place, from the text so"
            f" far. The longest pause was {answered['failover_ms'] / 1000:.1f} s."
        )
        note(
            f"{len(answered['ids'])} tokens for {sats(answered['spent_msat'])},"
            f" paid by Lightning to {len(answered['paid_msat'])} providers while they came"
        )
        step("one process that has the whole model gets the same question; MiniLM, a second model, compares sentences")
        # Its operator starts again what has died, and the cheater comes: it is listed some epochs later.
        self.embedded, self.alone, self.cheater, _ = await asyncio.gather(
            self.market.command(
                "embed", *SENTENCES, "--config", str(self.customer), "--model", self.encoder["address"],
                "--report", str(self.folder / "embed.json"),
            ),
            _alone(self.smollm2, self.folder),
            dishonest_provider.enter(self.market, self.decoder, answered["task"], self.common, self.names),
            self.restart(answered["killed"]),
        )  # fmt: skip
        self.embedding = json.loads((self.folder / "embed.json").read_text())
        table = Table("sentence", "the closest in meaning, by MiniLM", box=None, header_style="bold")
        for i, j in enumerate(nearest(self.embedded["vectors"])):
            table.add_row(SENTENCES[i], SENTENCES[j])
        out.print(table)
        self.spent_msat = CUSTOMER_MSAT - await balance_msat(self.common, self.customer.parent)
        held_msat = await self.balances_msat()
        self.paid_msat = {name: held_msat[name] - opened_msat for name, opened_msat in self.opened_msat.items()}

    async def second_act(self, listing: Listing) -> None:
        """A cheater."""
        market, decoder = self.market, self.decoder
        step("a cheater: one more provider has joined, and leaves out a part of the work that it sells")
        dishonest_provider.introduce(self.cheater)
        where = (self.cheater.public, decoder["digest"], self.cheater.task)
        # What compares and audits the jobs before has time until the cheater is listed; later the committee needs it.
        unlisted, self.alone_vectors, *audits = await asyncio.gather(
            listing.until(*where, listed=True),
            models.vectors(market, self.minilm, self.kept, SENTENCES),
            *(self.audit(job["request"]) for job in (self.answered, self.embedding)),
        )
        if unlisted:
            note(f"{self.cheater.name} is not listed: {unlisted}")
        step(f"the customer asks again, for {dishonest_provider.TOKENS} tokens, and has others compute the work again")
        self.betrayed = await dishonest_provider.buy(market, QUESTION, self.bought, self.cheater)
        self.came, self.still_listed, *more = await asyncio.gather(
            dishonest_provider.settled(self.cheater, self.betrayed, market, self.common, self.names),
            listing.until(*where, listed=False),
            *(self.audit(request) for request in self.betrayed["requests"]),
        )
        self.audits = [*audits, *more]
        seats = {oracle: f"oracle-{i}" for i, oracle in enumerate(self.created["oracles"], start=1)}
        dishonest_provider.tell(self.cheater, self.betrayed, self.came, seats, self.public, self.names)
        note(f"the market lists {self.cheater.name} {'still' if self.still_listed else 'no more'}")

    async def restart(self, name: str) -> None:
        """As its operator does with a provider that has died."""
        again = self.configs[int(name.removeprefix("provider-"))]
        await self.market.daemon(name, "provider", "--config", str(again))

    def audit(self, request: str) -> Coroutine[None, None, dict]:
        return self.market.command("audit", request, "--config", str(self.customer))

    async def books(self) -> None:
        """The report, of records that stand on the relay and in wallets."""
        answered, embedding, betrayed = self.answered, self.embedding, self.betrayed
        jobs = (answered, embedding, betrayed)
        secrets = [QUESTION, answered["text"], betrayed["text"], *SENTENCES, *(job["ticket"] for job in jobs)]
        hits = plaintext_hits(self.folder, await relay_events(self.common["relay"]), secrets)
        receipts = answered["receipts"] + embedding["receipts"]
        generation = {a["task"]: self.names[a["provider"]] for a in answered["tasks"]}
        alone = self.alone
        self.report = {
            "models": [self.decoder["name"], self.encoder["name"]],
            "question": QUESTION,
            "answer": answered["text"],
            "sentences": len(SENTENCES),
            "first_providers": answered["first_providers"],
            "generation_providers": generation,
            "embedding_providers": {a["task"]: self.names[a["provider"]] for a in embedding["tasks"]},
            "weights_bytes": self.whole_bytes,
            "most_held_bytes": self.most_bytes,
            "most_held_percent": round(100 * self.most_bytes / self.whole_bytes, 1),
            "machine_memory_bytes": answered["machine_bytes"],
            "single_process_memory_bytes": alone["memory_bytes"],
            "tokens": len(answered["ids"]),
            "killed": answered["killed"],
            "failover_ms": answered["failover_ms"],
            "tokens_identical_after_failover": answered["ids"] == alone["ids"],
            "embedding_max_abs_diff": max(
                abs(a - b)
                for v, w in zip(self.embedded["vectors"], self.alone_vectors, strict=True)
                for a, b in zip(v, w, strict=True)
            ),
            "provider_processes": sum(n.startswith("provider-") for n in self.market.processes),
            "oracle_processes": sum(n.startswith("oracle-") for n in self.market.processes),
            "customer_spent_msat": self.spent_msat,
            "paid_msat": self.paid_msat,
            "paid_total_msat": sum(self.paid_msat.values()),
            "fees_msat": answered["fees_msat"] + embedding["fees_msat"],
            "msat_per_token": answered["spent_msat"] / len(answered["ids"]),
            "relay_plaintext_hits": hits,
            "receipts": len(receipts),
            "hop_ms_p50": answered["hop_ms_p50"],
            "first_token_ms": answered["first_token_ms"],
            "tokens_per_s": answered["tokens_per_s"],
            "single_process_tokens_per_s": alone["tokens_per_s"],
            "audited_ok": all(a["ok"] for a in self.audits),
            "cheater": self.cheater.name,
            "cheat_altered_percent": dishonest_provider.altered_percent(self.market, self.cheater),
            "cheater_net_msat": self.came["net_msat"],
            "verdicts": self.came["verdicts"],
            "slashed": self.came["slashed"],
            "refunded_msat": betrayed["refunded_msat"],
            "tokens_identical_after_repair": betrayed["ids"] == alone["ids"][: dishonest_provider.TOKENS],
            "load": round(machines.load(), 1),
            "seconds": round(time.monotonic() - STARTED, 1),
        }
        Path(self.options.report).write_text(json.dumps(self.report, indent=1) + "\n")

    def end(self) -> bool:
        """What it came to; whether all is as it must be."""
        step("what it came to")
        checks = [
            *_answered(self.report, self.answered, self.alone),
            *_judged(self.report, self.cheater, self.came, self.betrayed, self.still_listed, self.alone),
            Check(
                "anybody can derive again from public records which machines each job had to take",
                self.report["audited_ok"],
                f"these do not: {[one for one in self.audits if not one['ok']]}"[:500],
            ),
        ]
        for check in checks:
            out.print(f"{'[green]✓' if check.is_ok else '[red]✗'}[/] {check.text}", soft_wrap=True)
            if not check.is_ok:
                out.print(f"  [red]{escape(check.reason)}[/]", soft_wrap=True)
        out.print()
        out.print(summary.table(self.report))
        for line in summary.speed(self.report, len(self.market.processes)):
            out.print(line, soft_wrap=True)
        out.print(f"All of it is in {Path(self.options.report).resolve()}.", soft_wrap=True)
        if not self.options.stay:
            out.print(summary.NEXT, soft_wrap=True)
        return all(check.is_ok for check in checks)

    async def stay(self) -> None:
        folder, address = self.options.folder, self.decoder["address"]
        out.print(
            "\n[bold]The market stays up[/] until Ctrl-C. Talk with the model, in another terminal in this folder:\n"
            f"  {Path(sys.executable).with_name('nodewire')} chat {address}"
            f" --config {folder}/customer/customer.toml --temperature 0",
            soft_wrap=True,
        )
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--relay", default="", help="use this relay for events instead of starting ours")
    parser.add_argument("--report", default="demo-report.json")
    parser.add_argument("--folder", default=".demo", help="where the market keeps its state (emptied first)")
    parser.add_argument("--stay", action="store_true", help="leave the market running")
    try:
        sys.exit(asyncio.run(run(parser.parse_args())))
    except DemoFailure as error:
        sys.exit(f"demo: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)


if __name__ == "__main__":
    main()
