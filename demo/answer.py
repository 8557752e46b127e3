"""A question that is asked on the market, whose answer is shown as it comes; a provider dies in the middle of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Set
from pathlib import Path

from market import NODEWIRE, Broken, Market
from records import next_plan
from screen import out

KILL_AFTER = 40
"""Characters of the answer that have come when a provider is killed."""
Came = Callable[[str], Awaitable[None]]


async def ask(
    question: str, arguments: list[str], tokens: int, report: Path, came: Came, pids: list[int] | None = None
) -> dict:
    """What `nodewire generate --chat` reports of its answer, and `printed`: all that it printed, as it came.

    `came` is told every further text. `pids` gets the id of the command's process. Raises Broken.
    """
    process = await asyncio.create_subprocess_exec(
        *NODEWIRE, "generate", question, "--chat", *arguments, "--max-tokens", str(tokens), "--report", str(report),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout and process.stderr
    if pids is not None:
        pids.append(process.pid)
    notes = asyncio.create_task(process.stderr.read())
    printed = ""
    while piece := (await process.stdout.read(4_096)).decode(errors="replace"):
        printed += piece
        await came(piece)
    said = (await notes).decode()
    if await process.wait():
        raise Broken(f"the question was not answered:\n{said[-2000:]}")
    return {**json.loads(report.read_text()), "printed": printed}


def show(text: str, style: str = "") -> None:
    """A part of a line, at once."""
    out.print(text, end="", style=style, markup=False, soft_wrap=True)
    sys.stdout.flush()


async def bereave(
    market: Market,
    question: str,
    arguments: list[str],
    tokens: int,
    public: str,
    relay: str,
    names: Mapping[str, str],
    serving: Mapping[str, Set[str]],
) -> dict:
    """Ask on the market, and kill one of the providers when some of the answer has come. What then happened.

    `public`: the customer's key. `names`: of providers, by public key. `serving`: by task, who serves it.
    """
    text, came_s, silent_s = "", 0.0, 0.0
    victim: dict = {}

    async def came(piece: str) -> None:
        nonlocal text, came_s, silent_s, victim
        now_s = time.monotonic()
        if victim:
            silent_s = max(silent_s, now_s - came_s)
        elif len(text) + len(piece) >= KILL_AFTER:
            victim = _mortal(await planned, serving)
            os.killpg(market.processes[names[victim["provider"]]].pid, signal.SIGKILL)
        if not text:
            told = ", ".join(f"{names[a['provider']]} ({a['task']})" for a in (await planned)["tasks"])
            out.print(f"  [dim]computed by {told}; the relay never sees question or answer[/]\n", soft_wrap=True)
        show(piece, "bold")
        if victim and not came_s:
            show(f" [{names[victim['provider']]} is killed here] ", "red")
        text += piece
        came_s = time.monotonic() if victim else 0.0

    async with next_plan(relay, public) as planned:
        done = await ask(question, arguments, tokens, market.folder / "answer.json", came)
    plan = await planned
    out.print()
    if not victim:
        raise Broken(f"the answer ended after {len(text)} characters, before anybody could die")
    killed = names[victim["provider"]]
    if not done.get("begun_anew"):
        raise Broken(f"{killed} died, and the answer did not need it any more")
    went_on = next(a["provider"] for a in done["tasks"] if a["task"] == victim["task"])
    return {
        **done,
        "task": victim["task"],
        "killed": killed,
        "went_on": names[went_on],
        "first_providers": {a["task"]: names[a["provider"]] for a in plan["tasks"]},
        "failover_ms": round(silent_s * 1_000, 1),
    }


def _mortal(plan: Mapping, serving: Mapping[str, Set[str]]) -> dict:
    """A provider of the plan in the middle of the model, whose piece another has as well."""
    mortal = [a for a in plan["tasks"] if len(serving[a["task"]]) > 1]
    if not mortal:
        raise Broken("every provider of the plan holds a piece of the model that nobody else has, so none can die")
    return mortal[len(mortal) // 2]
