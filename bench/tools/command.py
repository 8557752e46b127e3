"""A `nodewire` command in a process of its own: what it says, how long it takes, how much memory it comes to hold.

`python -m bench.tools.command register FOLDER ...` runs it and adds a line with the kernel's own mark of the most that
was resident (VmHWM, which, unlike what `wait` reports, has nothing of the process that started it).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodewire.errors import NodewireError


@dataclass(frozen=True, slots=True)
class Ran:
    """`said` is what `--json` prints; `cpu_s` is of all its threads."""

    said: dict[str, Any]
    seconds: float
    cpu_s: float
    peak_rss_bytes: int


async def ran(*arguments: str) -> Ran:
    """Run `nodewire ARGUMENTS --json`. Raises NodewireError: it ended with an error."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.tools.command", *arguments, "--json", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    seconds = time.monotonic() - began
    lines = out.splitlines()
    if process.returncode or len(lines) != 2:
        raise NodewireError(" ".join(arguments)[:200], f"ended with {process.returncode}: {out[-400:].decode()}")
    return Ran(json.loads(lines[0]), seconds, **json.loads(lines[1]))


def _main() -> None:
    from nodewire import cli

    code: Any = 1
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    lines = Path("/proc/self/status").read_text().splitlines()
    most_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    print(json.dumps({"cpu_s": time.process_time(), "peak_rss_bytes": most_kb * 1_024}), flush=True)
    sys.exit(code)


if __name__ == "__main__":
    _main()
