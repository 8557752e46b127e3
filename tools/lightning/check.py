"""`make lightning`: sets the network up, runs the wallets' tests and a market on it, and prints one line of JSON.

`wallet_settings(state_file)` in `network.py` gives what `[wallet]` of three roles says, for a market over these nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nodewire.pay.lightning.wallet import Wallet
from nodewire.pay.wallets.electrum import ElectrumWallet
from nodewire.pay.wallets.nwc import NwcWallet
from tools.lightning.market import trade
from tools.lightning.network import ROOT, Network
from tools.lightning.packages import SetupError, say
from tools.lightning.rpc import RpcError

STATE = "NODEWIRE_LIGHTNING"
TESTS = "tests/pay"
RUNS = {
    "electrum": (f"{TESTS}/lightning/test_wallet_contract.py", "electrum and not electrum-nwc"),
    "electrum_nwc": (f"{TESTS}/lightning/test_wallet_contract.py", "electrum-nwc"),
    "deaths": (f"{TESTS}/wallets/test_electrum_network.py", ""),
}
AMOUNT_MSAT, PAYMENTS = 21_000, 20


def run_tests(state_file: Path, file: str, chosen: str) -> dict[str, int]:
    """How many cases of a file passed, failed, and showed that the wallet refuses what it lacks; skipped ones too."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            file,
        ]
        environment = os.environ | {STATE: str(state_file)}
        subprocess.run([*command, "-k", chosen], cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    found = {"passed": 0, "failed": 0, "lacking": 0, "skipped": 0}
    for case in cases:
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            found["failed"] += 1
        elif skipped is None:
            found["passed"] += 1
        else:
            found["lacking" if skipped.get("type") == "pytest.xfail" else "skipped"] += 1
    return found


async def measure(payer: Wallet, payee: Wallet) -> dict[str, Any]:
    """What payments over the forwarding node take, and cost."""
    took_s, fees_msat = [], []
    for _ in range(PAYMENTS):
        invoice = await payee.invoice(AMOUNT_MSAT, description="a measurement", expiry_s=600)
        began = time.perf_counter()
        paid = await payer.pay(invoice.bolt11, max_fee_msat=10_000)
        took_s.append(time.perf_counter() - began)
        if paid.state != "settled":
            raise SetupError(f"a payment of {AMOUNT_MSAT} msat is {paid.state}: {paid.reason}")
        fees_msat.append((await payer.lookup(invoice.payment_hash, "out")).fee_msat)
    return {
        "payments": PAYMENTS,
        "amount_msat": AMOUNT_MSAT,
        "median_s": round(statistics.median(took_s), 3),
        "max_s": round(max(took_s), 3),
        "fee_msat": sorted(set(fees_msat)),
    }


async def measure_all(nodes: dict[str, dict[str, str]]) -> dict[str, Any]:
    payee, payer = (ElectrumWallet.from_file(nodes[one]["url"], Path(nodes[one]["token_file"])) for one in ("c", "a"))
    over_nwc = NwcWallet.from_file("", Path(nodes["a"]["nwc_file"]))
    try:
        return {"electrum": await measure(payer, payee), "electrum_nwc": await measure(over_nwc, payee)}
    finally:
        for wallet in (payee, payer, over_nwc):
            await wallet.close()


def kill_all(network: Network) -> dict[str, Any]:
    """What the bench says of payments whose every party dies."""
    command = [sys.executable, "-m", "bench.market.chaos_pay_nodes", str(network.folder), "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        raise SetupError(f"bench.market.chaos_pay_nodes ended with {done.returncode}")
    said = json.loads(done.stdout)
    return {"ok": done.returncode == 0, **said["arms"].get("nodes", {}), "summary": said["summary"]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.lightning.check", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/lightning"))
    parser.add_argument("--stay", action="store_true", help="leave the network running")
    asked = parser.parse_args()
    network = Network(asked.folder)
    try:
        began = time.monotonic()
        network.up()
        up_s = round(time.monotonic() - began)
        say(f"up after {up_s} s")
        network.forget_invoices()
        latency = asyncio.run(measure_all(json.loads(network.state_file.read_text())["nodes"]))
        tests = {name: run_tests(network.state_file, *chosen) for name, chosen in RUNS.items()}
        network.up()
        market = asyncio.run(trade(network))
        deaths = kill_all(network)
    except (SetupError, RpcError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if not asked.stay:
            network.down()
    ok = (
        market["ok"]
        and deaths["ok"]
        and all(one["passed"] and not one["failed"] and not one["skipped"] for one in tests.values())
    )
    found = {"setup_s": up_s, "latency": latency, "tests": tests, "market": market, "all_die": deaths}
    print(json.dumps({"bench": "lightning", **found, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
