"""`make demo`: a whole market on this machine, made of public commands and ordinary configuration files.

    python demo/run.py [--relay URL] [--report demo-report.json] [--stay]

Starts a relay with its blob store, a simulated Lightning network that also holds bonds, four oracles and eight
providers, every one its own process with its own key; registers two real models; buys a generation and embeddings, and
checks both against a single process. Second act: job A loses a provider in mid-generation (`failover`), job B meets a
cheater (`cheating`). Audits every plan and writes what happened to `demo-report.json`. `--stay` leaves the market
running to play with. `--relay` uses a relay that is already there for all events (blobs stay in ours).
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

import cheating
from failover import bereave
from market import (
    PROVIDERS,
    SIMNET,
    Broken,
    Market,
    customer_config,
    minilm,
    provider_config,
    register,
    specializations,
)
from records import plaintext_hits, relay_events
from rich.markup import escape
from rich.table import Table
from screen import STARTED, Progress, note, out, sats, saying, step

HERE = Path(__file__).parent
DECODER = HERE / "model" / "pycoder"
DTYPE = ("--dtype", "float32")
"""So small a model decodes in it about as fast, and verification finds finer deviations."""
PROMPT = "def read_config(path):\n    "
TOKENS = 160
SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sunshine.",
    "Lightning payments settle in milliseconds.",
    "Paying over the Lightning network takes almost no time.",
    "The orchestra rehearses Beethoven tonight.",
    "Musicians are practising a symphony this evening.",
    "Rain is expected across the northern coast.",
    "The forecast says showers in the north.",
]


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
            return await trade(market, options)
        finally:
            await market.stop()


def _pieces(registered: dict) -> str:
    return f"{registered['name']} is cut into {len(registered['tasks'])} pieces and uploaded"


async def found(market: Market, holder: str, where: list[str]) -> tuple[dict, dict]:
    """The committee, and the Lightning network that holds bonds for it."""
    folder = market.folder
    created = await market.command(
        "committee", "create", str(folder / "committee"), "--oracles", "4",
        "--epoch-ms", "2000", "--skew-ms", "200", "--beat-ms", "1000",
        # Every chunk of a job that asks for it is computed again, where 5 % would do: one job shall show a catch.
        "--verify-rate", "100%", "--bond-holder", holder, *where,
    )  # fmt: skip
    note(f"the committee of {len(created['oracles'])} is founded; it verifies every chunk of a job that asks for it")
    simnet = await market.daemon(
        "simnet", "--port", "0", "--db", str(folder / "simnet.db"), "--faucet",
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


def _bought(report: dict, generated: dict, alone: dict) -> list[Check]:
    """What must hold of the first act."""
    spent_msat, came_msat = report["customer_spent_msat"], report["paid_total_msat"] + report["fees_msat"]
    return [
        Check(
            "the split model's tokens equal the single process's",
            report["tokens_identical"],
            _apart(generated["ids"], alone["ids"]) + "; at least 128 must come",
        ),
        Check(
            "the embeddings equal the single process's (1e-5)",
            report["embedding_max_abs_diff"] <= 1e-5,
            f"they differ by up to {report['embedding_max_abs_diff']:.2e}",
        ),
        Check(
            "the customer spent exactly what providers and routers got",
            spent_msat == came_msat,
            f"it spent {sats(spent_msat)}, they got {sats(came_msat)}",
        ),
        Check(
            "no prompt, completion or ticket stands readable on the relay",
            report["relay_plaintext_hits"] == 0,
            f"{report['relay_plaintext_hits']} do",
        ),
    ]


def _judged(
    report: dict, cheater: cheating.Cheater, came: dict, betrayed: dict, still_listed: str, alone: dict
) -> list[Check]:
    """What must hold of the second act."""
    hers = [one["outcome"] or "none" for one in betrayed["verdicts"] if one["provider"] == cheater.public]
    drawn = f"of {len(betrayed['verdicts'])} samples {len(hers)} were its work: {', '.join(hers) or 'none'}"
    slashed = [one["provider"] for one in came["slashed"]]
    return [
        Check(
            "after a provider's death the tokens are still the same",
            report["tokens_identical_after_failover"],
            "the generation that lost a provider has other tokens than the single process",
        ),
        Check(
            f"the cheat altered numbers ({report['cheat_altered_percent']:.1f} %)",
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
        Check("it is listed no more", not still_listed, still_listed),
        Check(
            "what the customer has in the end are the same tokens",
            report["tokens_identical_after_repair"],
            _apart(betrayed["ids"], alone["ids"][: cheating.TOKENS]),
        ),
    ]


async def trade(market: Market, options: argparse.Namespace) -> int:
    folder = market.folder
    step("a relay with its blob store; a committee of four oracles; a Lightning network that holds bonds; two models")
    relay, holder = await asyncio.gather(
        market.daemon(
            "relay", "relay", "--port", "0", "--db", str(folder / "relay.db"), "--blobs", str(folder / "blobs")
        ),
        market.command("keys", "new", str(folder / "holder.nsec")),
    )
    common = {"relay": options.relay or relay["url"], "blossom": relay["blossom"]}
    where = ["--relay", common["relay"], "--blossom", common["blossom"]]

    (created, simnet), decoder, encoder = await asyncio.gather(
        found(market, holder["npub"], where),
        saying(register(market, DECODER, "pycoder", "12MB", where, *DTYPE), _pieces),
        saying(register(market, minilm(), "minilm", "30MB", where), _pieces),
    )
    common |= {"committee": created["address"], "simnet": simnet["url"]}
    notes = {
        "relay.url": common["relay"],
        "blossom.url": common["blossom"],
        "simnet.url": common["simnet"],
        "committee.address": created["address"],
        "pycoder.address": decoder["address"],
        "minilm.address": encoder["address"],
    }
    for name, text in notes.items():
        (folder / name).write_text(text + "\n")
    for model in (decoder, encoder):
        table = Table("piece of " + model["name"], "memory", "what limits it", box=None, header_style="bold")
        for task in model["tasks"]:
            table.add_row(task["name"], f"{task['memory_bytes'] / 1e6:.1f} MB", task["limit"])
        out.print(table)

    step(f"{PROVIDERS} providers load, verify and announce their pieces")
    oracles = [
        market.daemon(f"oracle-{i}", "oracle", "--config", str(folder / "committee" / f"oracle-{i}" / "oracle.toml"))
        for i in range(1, 5)
    ]
    serve = specializations(decoder, encoder)
    configs = await asyncio.gather(*(provider_config(market, i, serve[i], common) for i in range(PROVIDERS)))
    customer = await customer_config(market, common)
    seats, stalls = Progress("oracle", len(oracles)), Progress("provider", PROVIDERS)
    providers = [market.daemon(f"provider-{i}", "provider", "--config", str(c)) for i, c in enumerate(configs)]
    ready = await asyncio.gather(*map(seats.after, oracles), *map(stalls.after, providers))

    names = {line["public"]: line["name"] for line in ready[len(oracles) :]}
    for line in ready[len(oracles) :]:
        held = "; ".join(f"{', '.join(tasks)} of {model}" for model, tasks in line["serves"].items())
        out.print(f"  {line['name']} [dim]{line['public'][:8]}[/]  {held}", soft_wrap=True)

    step(f"buying {TOKENS} tokens from {decoder['name']}")
    await market.command(
        "generate", PROMPT, "--config", str(customer), "--model", decoder["address"],
        "--max-tokens", str(TOKENS), "--report", str(folder / "generate.json"), show=True,
    )  # fmt: skip
    generated = json.loads((folder / "generate.json").read_text())
    step(f"buying embeddings of {len(SENTENCES)} sentences from {encoder['name']}")
    embedded = await market.command(
        "embed", *SENTENCES, "--config", str(customer), "--model", encoder["address"],
        "--report", str(folder / "embed.json"),
    )  # fmt: skip
    bought = json.loads((folder / "embed.json").read_text())
    table = Table("sentence", "its nearest neighbour", box=None, header_style="bold")
    for i, j in enumerate(nearest(embedded["vectors"])):
        table.add_row(SENTENCES[i], SENTENCES[j])
    out.print(table)

    step("the same in one process, to compare")
    alone = await market.command("generate", PROMPT, "--local", str(DECODER), "--max-tokens", str(TOKENS), *DTYPE)
    spent, *balances = await asyncio.gather(
        *(market.command("wallet", "balance", "--config", str(config)) for config in (customer, *configs))
    )
    paid = {name: b["received_msat"] for name, b in zip(names.values(), balances, strict=True)}
    step("second act, job A: the same again, and one of its providers is killed in the middle of it")
    public = (await market.command("keys", "show", str(customer.parent / "key.nsec")))["public"]
    serving: dict[str, set[str]] = {}
    for i, one in enumerate(serve):
        for task in (task for address, task, _ in one if address == decoder["address"]):
            serving.setdefault(task, set()).add(f"provider-{i}")
    bereaved = await bereave(
        market, customer, public, PROMPT, TOKENS, decoder["address"], common["relay"], names, serving
    )
    out.print(
        f"  {bereaved['killed']} ({bereaved['task']}) died after {bereaved['after_chars']} characters;"
        f" {bereaved['went_on']} went on in its place: [bold]{bereaved['failover_ms']} ms[/] without text at most",
        soft_wrap=True,
    )

    step(f"second act, job B: {cheating.TOKENS} verified tokens, and one of the providers cheats")
    again = configs[int(bereaved["killed"].removeprefix("provider-"))]
    cheater, _ = await asyncio.gather(
        cheating.enter(market, decoder, bereaved["task"], common, names),
        market.daemon(bereaved["killed"], "provider", "--config", str(again)),  # its operator starts it again
    )
    honest = sum(
        any(task == cheater.task for address, task, _ in one if address == decoder["address"]) for one in serve
    )

    def audit(request: str) -> Coroutine[None, None, dict]:
        return market.command("audit", request, "--config", str(customer))

    # What compares and audits the jobs before has time until the cheater is listed; later the committee needs it.
    unlisted, alone_vectors, *audits = await asyncio.gather(
        cheating.listed(market, customer, decoder, cheater, honest + 1, common["relay"]),
        market.command("embed", *SENTENCES, "--local", str(minilm())),
        *(audit(job["request"]) for job in (generated, bought, bereaved)),
    )
    if unlisted:
        note(f"{cheater.name} is not listed: {unlisted}")
    betrayed = await cheating.buy(market, customer, PROMPT, decoder["address"], cheater)
    came, still_listed, *more = await asyncio.gather(
        cheating.settled(cheater, betrayed, market, common, names),
        cheating.listed(market, customer, decoder, cheater, honest, common["relay"]),
        *(audit(request) for request in betrayed["requests"]),
    )
    audits += more
    seats_of = {oracle: f"oracle-{i}" for i, oracle in enumerate(created["oracles"], start=1)}
    cheating.tell(cheater, betrayed, came, seats_of, public, names)
    altered = cheating.altered_percent(market, cheater)
    note(f"{cheater.name} is {'still listed' if still_listed else 'listed no more'}")
    step("what stands on the relay, and the books")
    hits = plaintext_hits(
        folder,
        await relay_events(common["relay"]),
        [
            PROMPT,
            generated["text"],
            *generated["text"].splitlines()[:1],
            betrayed["text"],
            *SENTENCES,
            *(job["ticket"] for job in (generated, bought, bereaved, betrayed)),
        ],
    )

    receipts = generated["receipts"] + bought["receipts"]
    strangers = len(generated["providers"])
    report = {
        "models": [decoder["name"], encoder["name"]],
        "prompt": PROMPT,
        "sentences": len(SENTENCES),
        "generation_providers": {a["task"]: names[a["provider"]] for a in generated["tasks"]},
        "embedding_providers": {a["task"]: names[a["provider"]] for a in bought["tasks"]},
        "tokens": len(generated["ids"]),
        "tokens_identical": generated["ids"] == alone["ids"] and len(generated["ids"]) >= 128,
        "embedding_max_abs_diff": max(
            abs(a - b)
            for v, w in zip(embedded["vectors"], alone_vectors["vectors"], strict=True)
            for a, b in zip(v, w, strict=True)
        ),
        "provider_processes": sum(n.startswith("provider-") for n in market.processes),
        "providers_used": len({*generated["providers"], *bought["providers"]}),
        "oracle_processes": sum(n.startswith("oracle-") for n in market.processes),
        "customer_spent_msat": spent["spent_msat"],
        "paid_msat": paid,
        "paid_total_msat": sum(paid.values()),
        "paid_total_sat": sum(paid.values()) / 1000,
        "fees_msat": spent["fees_msat"],
        "relay_plaintext_hits": hits,
        "receipts": len(receipts),
        "hop_ms_p50": generated["hop_ms_p50"],
        "first_token_ms": generated["first_token_ms"],
        "tokens_per_s": generated["tokens_per_s"],
        "single_process_tokens_per_s": alone["tokens_per_s"],
        "audited_ok": all(a["ok"] for a in audits),
        "killed": bereaved["killed"],
        "failover_ms": bereaved["failover_ms"],
        "tokens_identical_after_failover": bereaved["ids"] == alone["ids"],
        "cheater": cheater.name,
        "cheat_altered_percent": altered,
        "cheater_net_msat": came["net_msat"],
        "verdicts": came["verdicts"],
        "slashed": came["slashed"],
        "refunded_msat": betrayed["refunded_msat"],
        "tokens_identical_after_repair": betrayed["ids"] == alone["ids"][: cheating.TOKENS],
        "seconds": round(time.monotonic() - STARTED, 1),
    }
    Path(options.report).write_text(json.dumps(report, indent=1) + "\n")
    table = Table("receipt (8856)", "for", "chunks", "amount", "zap receipts (9735)", box=None, header_style="bold")
    for one in receipts:
        amount = sats(one["amount_msat"])
        table.add_row(one["event"][:12], names[one["provider"]], str(one["chunks"]), amount, str(one["zap_receipts"]))
    out.print(table)
    table = Table("who", "was paid", box=None, header_style="bold")
    for name, msat in paid.items():
        table.add_row(name, sats(msat))
    table.add_row("[bold]all providers", f"[bold]{sats(report['paid_total_msat'])}")
    table.add_row("routing fees", sats(report["fees_msat"]))
    table.add_row("[bold]the customer spent", f"[bold]{sats(report['customer_spent_msat'])}")
    out.print(table)
    checks = [
        *_bought(report, generated, alone),
        *_judged(report, cheater, came, betrayed, still_listed, alone),
        Check(
            "every job's plan re-derives from public records",
            report["audited_ok"],
            f"these do not: {[one for one in audits if not one['ok']]}"[:500],
        ),
    ]
    for check in checks:
        out.print(f"{'[green]✓' if check.is_ok else '[red]✗'}[/] {check.text}")
        if not check.is_ok:
            out.print(f"  [red]{escape(check.reason)}[/]", soft_wrap=True)
    step(f"written to {options.report}")
    out.print(
        f"[bold]{report['tokens_per_s']:.1f} tokens/s over {strangers} strangers' processes,"
        f" {report['single_process_tokens_per_s']:.1f} in one process[/]",
        soft_wrap=True,
    )
    if options.stay:
        out.print(
            "[bold]The market stays up[/] (Ctrl-C ends it). Try, in another terminal:\n"
            f"  . .venv/bin/activate\n"
            f"  nodewire generate 'import os' --config {options.folder}/customer/customer.toml --model pycoder",
            soft_wrap=True,
        )
        await asyncio.Event().wait()
    return 0 if all(check.is_ok for check in checks) else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--relay", default="", help="use this relay for events instead of starting ours")
    parser.add_argument("--report", default="demo-report.json")
    parser.add_argument("--folder", default=".demo", help="where the market keeps its state (emptied first)")
    parser.add_argument("--stay", action="store_true", help="leave the market running")
    try:
        sys.exit(asyncio.run(run(parser.parse_args())))
    except Broken as error:
        sys.exit(f"demo: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)


if __name__ == "__main__":
    main()
