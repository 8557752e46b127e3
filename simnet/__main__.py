"""`python -m simnet`: the simulated Lightning network as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import orjson

from nodewire.errors import NodewireError
from simnet.http import start
from simnet.service import Fees, Simnet
from simnet.starting import open_treasurer


async def serve(
    *, host: str, port: int, db: Path, fees: Fees, faucet_msat: int, key: Path | None, committee: Path | None
) -> None:
    """Serve until SIGINT or SIGTERM; the first line on stdout is {"url": ...} once requests are answered."""
    simnet = Simnet(db, fees, faucet_msat)
    treasurer = open_treasurer(simnet, key, committee) if key is not None and committee is not None else None
    runner, url = await start(simnet, host, port, treasurer)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(orjson.dumps({"url": url}).decode(), flush=True)
    try:
        await stop.wait()
    finally:
        await runner.cleanup()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simnet", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--db", type=Path, required=True, help="the network's journal (SQLite)")
    parser.add_argument("--fee-ppm", type=int, default=0)
    parser.add_argument("--base-fee-msat", type=int, default=0)
    parser.add_argument(
        "--faucet-msat",
        type=int,
        default=100_000_000_000,
        help="most play money that a new account may open with (0: no faucet)",
    )
    parser.add_argument("--key", type=Path, help="the bond holder's nsec (made if missing); with --committee")
    parser.add_argument("--committee", type=Path, help="committee.json: hold bonds for this committee")
    given = parser.parse_args(arguments)
    if (given.key is None) != (given.committee is None):
        parser.error("--key and --committee go together")
    fees = Fees(given.base_fee_msat, given.fee_ppm)
    try:
        asyncio.run(
            serve(
                host=given.host,
                port=given.port,
                db=given.db,
                fees=fees,
                faucet_msat=given.faucet_msat,
                key=given.key,
                committee=given.committee,
            )
        )
    except NodewireError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
