"""Makes the market of docker-compose.yml: a committee, a registered model, wallets, one configuration per node.

Runs once, in the container `setup`, with nodewire's public commands; writes below /market, one folder per node, and
each node's container gets to see its own folder only.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

MARKET = Path("/market")
MODEL = Path("/model")
PROVIDERS = 4
PRICE_MSAT = 21_000
RELAY, BLOSSOM, SIMNET = "ws://relay:7777", "http://relay:7777", "http://simnet:8001"
WHERE = ("--relay", RELAY, "--blossom", BLOSSOM)


def nodewire(*arguments: str) -> dict:
    """What `nodewire ARGUMENTS --json` prints; its errors go to the log."""
    run = subprocess.run(["nodewire", *arguments, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(run.stdout)


def node(name: str, committee: str, *wallet: str) -> list[str]:
    """A node's folder with its wallet; the lines with which its configuration begins."""
    folder = MARKET / name
    folder.mkdir()
    nodewire("wallet", "open", SIMNET, "--out", str(folder / "wallet.token"), *wallet)
    return [
        'key = "key.nsec"',
        'state = "state"',
        f'relays = ["{RELAY}"]',
        f'blossom = ["{BLOSSOM}"]',
        f'committee = "{committee}"',
    ]


def main() -> None:
    done = MARKET / "done"
    if done.exists():
        return
    committee = nodewire("committee", "create", str(MARKET / "committee"), "--oracles", "4", *WHERE)["address"]
    model = nodewire(
        "register",
        str(MODEL),
        "--target-vram",
        "12MB",
        "--key",
        str(MARKET / "author.nsec"),
        "--name",
        "pycoder",
        *WHERE,
    )
    tasks = [task["name"] for task in model["tasks"]]
    wallet = ["[wallet]", f'url = "{SIMNET}"', 'token_file = "wallet.token"']
    for i in range(PROVIDERS):
        lines = [*node(name := f"provider-{i}", committee), f'name = "{name}"']
        lines += ["[wire]", 'listen = "0.0.0.0:9735"', f'announce = ["{name}:9735"]']
        lines += ["[lnurl]", 'listen = "0.0.0.0:8080"', f'url = "http://{name}:8080"', *wallet]
        # two neighbouring nodes for every task, so that another is left when one dies
        served = [task for t, task in enumerate(tasks) if i in (t % PROVIDERS, (t + 1) % PROVIDERS)]
        lines += [
            "[[serve]]",
            f'manifest = "{model["address"]}"',
            f"tasks = {json.dumps(served or tasks[:1])}",
            f"price_msat = {PRICE_MSAT}",
        ]
        (MARKET / name / "provider.toml").write_text("\n".join(lines) + "\n")
    lines = [*node("customer", committee, "--balance", "100000sat"), "private_endpoints = true", *wallet]
    (MARKET / "customer" / "customer.toml").write_text("\n".join(lines) + "\n")
    print(f"generate with  --model {model['address']}", flush=True)
    done.touch()


if __name__ == "__main__":
    main()
