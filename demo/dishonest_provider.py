"""The second act: a provider that leaves out a layer sells to a customer who has the work verified."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from answer import ask
from market import PROVIDERS, Market, balance_msat, provider_config
from records import certified, held
from rich.markup import escape
from screen import note, out, sats

TOKENS = 24
BOND_MSAT = 20_000_000
"""Twenty times another provider's: a newcomer's weight is lower, and so nine plans of ten name it."""
PRICE_MSAT = 3
MAX_TRIES = 12
"""How often it is bought until the cheater has had a part in it, and that was judged."""
ALTERED = re.compile(r"a layer was left out; the first rows are off by ([0-9.]+) %")
CHEAT = [sys.executable, str(Path(__file__).parent / "cheat.py")]


class Cheater:
    """A provider `name` with its public key `public`, which sells `task` of the decoder."""

    def __init__(self, name: str, public: str, task: str, config: Path) -> None:
        self.name, self.public, self.task, self.config = name, public, task, config


async def enter(market: Market, decoder: dict, spared: str, common: dict, names: dict) -> Cheater:
    """Start the cheater, with a stage of the decoder that is not `spared`."""
    stages = [task["name"] for task in decoder["tasks"] if task["engine"] == "decoder.stage"]
    task = next(stage for stage in stages if stage != spared)
    name = f"provider-{PROVIDERS}"
    serve = [(decoder["address"], task, PRICE_MSAT)]
    config = await provider_config(market, PROVIDERS, serve, common, bond_msat=BOND_MSAT, us=1)
    ready = await market.daemon(name, "provider", "--config", str(config), program=CHEAT)
    names[ready["public"]] = name
    return Cheater(name, ready["public"], task, config)


def introduce(cheater: Cheater) -> None:
    bond = sats(BOND_MSAT)
    note(f"{cheater.name} sells {cheater.task}, cheap, and with a bond of {bond}; it leaves out a layer")


def altered_percent(market: Market, cheater: Cheater) -> float:
    """How far the cheat changed the worker's numbers, by its own log; 0 if it never computed or changed nothing."""
    found = ALTERED.search((market.folder / f"{cheater.name}.log").read_text(errors="replace"))
    return float(found[1]) if found else 0.0


async def buy(market: Market, question: str, arguments: list[str], cheater: Cheater) -> dict:
    """Ask for verified work until the cheater's part in it is judged, and wait for the verdicts and for its repair.

    What `ask` says of it, with `first_text`: what the customer read before anything was judged, `requests`: of all jobs
    that it took, and `verdicts` of all that was bought.
    """
    report = market.folder / "betrayed.json"
    requests: list[str] = []
    before: list[dict] = []

    async def came(piece: str) -> None:
        """The text is told when it is known which part of it others have made again."""

    for _ in range(MAX_TRIES):
        done = await ask(question, [*arguments, "--verify", "--wait"], TOKENS, report, came)
        done["first_text"] = first_text(done["printed"], done)
        requests += done.get("requests", [done["request"]])
        before += done["verdicts"]
        if any(verdict["culprit"] == cheater.public for verdict in before):
            break
        had = any(verdict["provider"] == cheater.public for verdict in before)
        lot = f"no verdict on {cheater.name}'s part came in time" if had else f"the lot did not fall on {cheater.name}"
        note(f"the answer is {excerpt(done['text'])}; {lot}, so the same is asked again")
    return {**done, "requests": list(dict.fromkeys(requests)), "verdicts": before}


def excerpt(text: str) -> str:
    """The beginning of a text, quoted, in rich's markup."""
    return escape(repr(" ".join(text.split())[:56]))


def first_text(printed: str, done: dict) -> str:
    """What was printed before the repair from the first token on, which is printed after it."""
    text = printed.removesuffix("\n")
    return text.removesuffix(done["text"]) if done["repaired"] else text


async def settled(cheater: Cheater, done: dict, market: Market, common: dict, names: dict) -> dict:
    """What came of it: by the relay's certificates, the Lightning node's account, and the bonds' holder's books."""
    verdicts = await certified(common["relay"], done["requests"])
    convicting = {
        topic: one
        for topic, one in verdicts.items()
        if one["verdict"]["provider"] == cheater.public and one["verdict"]["outcome"] == "fail"
    }
    balance = await balance_msat(common, cheater.config.parent)
    bonds = {name: await held(common["simnet"], f"bonds/{public}") for public, name in names.items()}
    bond = bonds[cheater.name]
    # Its account was opened with twice the bond; what the holder has locked has left it.
    received_msat = balance - (2 * BOND_MSAT - bond["amount_msat"])
    cases = [await held(common["simnet"], f"cases/{case}") for case in bond["cases"]]
    payouts: Counter[str] = Counter()
    for case in cases:
        payouts.update(case["payouts"])
    slashed = [{"provider": name, "amount_msat": lost_msat(one)} for name, one in bonds.items() if lost_msat(one)]
    return {
        "verdicts": dict(Counter(one["outcome"] or "none" for one in done["verdicts"])),
        "convicted": sorted({names.get(one["culprit"], one["culprit"]) for one in done["verdicts"] if one["culprit"]}),
        "votes": [len({vote["pubkey"] for vote in one["votes"]}) for one in convicting.values()],
        "off_percent": off_percent(market.folder, [topic.removeprefix("verdict/") for topic in convicting]),
        "received_msat": received_msat,
        "lost_msat": lost_msat(bond),
        "net_msat": received_msat - lost_msat(bond),
        "payouts": dict(payouts),
        "slashed": slashed,
    }


def lost_msat(bond: dict) -> int:
    """What a provider has lost of its bond, by the holder's word: all of a slashed one, of others what was paid out."""
    if not bond:
        return 0
    return bond["amount_msat"] - (0 if bond["state"] in ("slashed", "burnt") else bond["remainder_msat"])


def off_percent(folder: Path, keys: list[str]) -> float | None:
    """How far the sketches of the samples with these keys were off, at most, by the logs of the oracles."""
    said = re.compile(r"sample ([0-9a-f]{8}): .* ([0-9.]+) % off")
    found = []
    for log in folder.glob("oracle-*.log"):
        found += [float(off) for key, off in said.findall(log.read_text()) if any(k.startswith(key) for k in keys)]
    return max(found, default=None)


OUTCOMES = {
    "pass": "computed again and found right",
    "fail": "computed again and found wrong",
    "withheld": "not shown by the provider that must keep it",
    "unsure": "not judged in time",
    "none": "without a verdict",
}


def tell(cheater: Cheater, done: dict, came: dict, oracles: dict[str, str], customer: str, names: dict) -> None:
    """The story, in a few lines. `oracles`: their names by public key."""
    for line in story(cheater, done, came, oracles, customer, names):
        out.print(f"  {line}", soft_wrap=True)


def story(
    cheater: Cheater, done: dict, came: dict, oracles: dict[str, str], customer: str, names: dict
) -> Iterator[str]:
    """What the records say that happened, in rich's markup: nothing is told that they do not have."""
    first, last = excerpt(done["first_text"]), excerpt(done["text"])
    repaired = bool(done["repaired"])
    yield f"the customer first read [red]{first}[/]" if repaired else f"the customer read {first}"
    drawn = sum(came["verdicts"].values())
    told = [f"{count} {OUTCOMES[outcome]}" for outcome in OUTCOMES if (count := came["verdicts"].get(outcome))]
    yield f"a public lottery picked {drawn} pieces of work: {', '.join(told) or 'none'}"
    hers = Counter(one["outcome"] or "none" for one in done["verdicts"] if one["provider"] == cheater.public)
    if hers["fail"]:
        apart = "" if came["off_percent"] is None else f", [bold]{came['off_percent']:.0f} %[/] apart"
        signed = f"the result that {cheater.name} had signed for {cheater.task}"
        drawn = f"{hers['fail']} of its {sum(hers.values())} pieces that were picked"
        yield f"{signed} is another than the one computed again{apart}, in {drawn}"
    elif hers:
        told = [f"{count} {OUTCOMES[outcome]}" for outcome in OUTCOMES if (count := hers[outcome])]
        yield f"of {cheater.name}'s work for {cheater.task}: {', '.join(told)}"
    else:
        yield f"the lottery picked nothing that {cheater.name} did"
    if others := {one["provider"] for one in done["verdicts"] if one["culprit"] == cheater.public} - {cheater.public}:
        whose = ", ".join(sorted(names.get(one, one[:8]) for one in others))
        check = f"{cheater.name} was drawn to check {whose}'s work by computing it again"
        yield f"{check}, and signed what nobody else finds"
    if came["convicted"]:
        votes = f", by at least {min(came['votes'])} of {len(oracles)} oracles" if came["votes"] else ""
        yield f"[bold red]convicted: {', '.join(came['convicted'])}[/]{votes}"
    else:
        yield "[bold]nobody was convicted[/]"
    if came["lost_msat"]:
        is_slashed = cheater.name in came["convicted"]
        done_to = "is slashed" if is_slashed else "was not slashed, and pays"
        amount = f"its bond of [bold]{sats(came['lost_msat'])}[/]" if is_slashed else "its bond"
        yield f"{amount} {done_to}: {shares(came, oracles, customer, names)}"
    else:
        yield f"its bond is untouched: {cheater.name} lost nothing"
    net_msat = came["net_msat"]
    net = f"[bold]cheating {'cost' if net_msat < 0 else 'made'} it {sats(abs(net_msat))}[/]"
    yield f"{cheater.name} was paid {sats(came['received_msat'])} and lost {sats(came['lost_msat'])}: {net}"
    if repaired:
        yield f"others made it again    [green]{last}[/]"
    else:
        yield "nothing was made again: no verdict asked for it"


def shares(came: dict, oracles: dict[str, str], customer: str, names: dict) -> str:
    """To whom went what a bond lost, by kinds of payees, for people."""
    kinds: Counter[str] = Counter()
    for payee, msat in came["payouts"].items():
        who = "the customer" if payee == customer else "oracles" if payee in oracles else names.get(payee, payee[:8])
        kinds[who] += msat
    parts = [f"{sats(msat)} to {who}" for who, msat in kinds.items()]
    rest_msat = came["lost_msat"] - sum(kinds.values())
    return ", ".join([*parts, *([f"{sats(rest_msat)} burnt"] if rest_msat else [])])
