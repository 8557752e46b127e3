"""One flood, in a process of its own: `python -m bench.hostile.flood NAME`, which prints what it did as JSON.

A flood is a function that takes a `Target` and a `Counter`, and goes on until it is cancelled. It comes from loopback
addresses of its own, which are its origins; it is bounded in number, and ends with its input, or with its time.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

GREEDY = tuple(f"127.0.0.{n}" for n in range(66, 82))
"""The addresses that floods come from; most use the first alone."""
_NICE = 15
"""A flood's own work would be done on another machine: here it gets the cores that nobody else wants."""


@dataclass(frozen=True, slots=True)
class Target:
    """What there is to be flooded. `role` is the configuration file of a customer whose key nobody knows.

    `extra` is what an arm's own preparation told.
    """

    relay: str
    blossom: str
    provider: str
    """Its public key."""
    addresses: tuple[str, ...]
    """Its addresses on the wire."""
    manifest: str
    role: str
    seconds: float
    extra: dict[str, str] = field(default_factory=dict)


Flood = Callable[[Target, Counter[str]], Awaitable[None]]


@asynccontextmanager
async def flooding(name: str, target: Target) -> AsyncIterator[Counter[str]]:
    """A flood from another process, which has begun, until the block is left; then what it counted is there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.hostile.flood", name, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    counts: Counter[str] = Counter()
    try:
        process.stdin.write(json.dumps(asdict(target)).encode() + b"\n")
        await process.stdout.readline()
        yield counts
        process.stdin.close()
        counts.update(json.loads(await process.stdout.read()))
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _run(flood: Flood, target: Target) -> Counter[str]:
    counts: Counter[str] = Counter()
    try:
        async with asyncio.timeout(target.seconds) as ends:
            loop = asyncio.get_running_loop()
            threading.Thread(target=_until_told, args=(loop, ends), daemon=True).start()
            await flood(target, counts)
    except TimeoutError:
        pass
    except Exception as error:  # noqa: BLE001 - how it ended is what is counted
        counts[f"ended by {type(error).__name__}"] += 1
        print(f"flood: {type(error).__name__}: {error}", file=sys.stderr)
    return counts


def _until_told(loop: asyncio.AbstractEventLoop, ends: asyncio.Timeout) -> None:
    sys.stdin.read()
    with suppress(RuntimeError):  # its time is over, too
        loop.call_soon_threadsafe(ends.reschedule, 0.0)


async def together(*tasks: Awaitable[None]) -> None:
    """Run all, however some of them fail; cancelled, all are."""
    await asyncio.gather(*tasks, return_exceptions=True)


def local(path: str) -> str:
    """The host and port of a URL, as floods dial them."""
    return path.split("://", 1)[1].rstrip("/")


def _main() -> None:
    from bench.hostile.__main__ import ARMS

    said = json.loads(sys.stdin.readline())
    target = Target(**{**said, "addresses": tuple(said["addresses"])})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384) if hard > 0 else 16_384, hard))
    assert Path(target.role).exists()
    os.nice(_NICE)
    print("begun", flush=True)
    print(json.dumps(asyncio.run(_run(ARMS[sys.argv[1]].flood, target))), flush=True)


if __name__ == "__main__":
    _main()
