"""`python -m relay`: run the relay alone until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from pathlib import Path

import uvloop

from nodewire.core import heap
from nodewire.metrics import endpoint
from relay import BlobLimits, Config, exporting, serve

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def size(text: str) -> int:
    """Bytes from a number of them, or such as 64GiB or 500MiB. Raises ValueError."""
    number, unit = text[:-3], text[-3:]
    return int(number) * _UNITS[unit] if unit in _UNITS else int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="relay", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7777, help="0 takes a free one, printed at start")
    parser.add_argument("--db", type=Path, default=Path("relay.sqlite"), help="the SQLite file of events")
    parser.add_argument("--blobs", type=Path, help="directory of the Blossom store; none without it")
    parser.add_argument("--quota", type=size, default="64GiB", help="most that blobs may take; half of it of one key")
    parser.add_argument("--site", type=Path, help="directory of static files for browsers")
    parser.add_argument("--url", help="the public ws(s) URL, where it differs from host and port")
    parser.add_argument("--name", default=Config.__dataclass_fields__["name"].default)
    parser.add_argument("--operator", help="public key (hex) shown by NIP-11")
    parser.add_argument("--public-wraps", action="store_true", help="serve NIP-59 wraps to anybody")
    parser.add_argument(
        "--sync", choices=("full", "normal"), default="full", help="normal: faster, OK may not survive a power cut"
    )
    parser.add_argument("--metrics", default="", help="host:port where Prometheus scrapes it; nowhere without it")
    return parser.parse_args()


async def main(config: Config, metrics: str = "") -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        relay = await stack.enter_async_context(serve(config))
        if metrics:
            await stack.enter_async_context(endpoint.serve_metrics(exporting.exposed(relay, metrics)))
        heap.freeze()
        print(relay.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    settings = {k: v for k, v in vars(args).items() if k not in ("sync", "quota", "metrics", "public_wraps")}
    config = Config(
        **settings,
        synchronous=args.sync.upper(),
        blob_limits=BlobLimits.of(args.quota),
        wraps_need_auth=not args.public_wraps,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(config, args.metrics))
