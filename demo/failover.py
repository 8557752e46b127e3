"""The second act, job A: a provider is killed in the middle of a generation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping, Set
from pathlib import Path

from market import NODEWIRE, Broken, Market
from records import newest_plan


async def bereave(
    market: Market,
    customer: Path,
    public: str,
    prompt: str,
    tokens: int,
    model: str,
    relay: str,
    names: Mapping[str, str],
    serving: Mapping[str, Set[str]],
) -> dict:
    """Buy a generation, and kill one of its providers when some of it has come. What then happened.

    `names`: of providers, by public key. `serving`: by task, the names of the providers that serve it.
    """
    report = market.folder / "bereaved.json"
    buying = await asyncio.create_subprocess_exec(
        *NODEWIRE, "generate", prompt, "--config", str(customer), "--model", model, "--max-tokens", str(tokens),
        "--report", str(report), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert buying.stdout and buying.stderr
    said = asyncio.create_task(buying.stderr.read())
    try:
        text = (await buying.stdout.readexactly(60)).decode()
    except asyncio.IncompleteReadError as error:
        came = f"the generation ended after {len(error.partial)} characters"
        raise Broken(f"{came}:\n{(await said).decode()[-2000:]}") from None
    plan = await newest_plan(relay, public)
    # A piece in the middle of the model; in a small market there may be no second holder of every piece.
    alone = {a["provider"] for a in plan["tasks"] if len(serving[a["task"]]) < 2}
    mortal = [a for a in plan["tasks"] if a["provider"] not in alone]
    if not mortal:
        raise Broken("every provider of the plan holds a piece of the model that nobody else has, so none can die")
    victim = mortal[len(mortal) // 2]
    os.killpg(market.processes[names[victim["provider"]]].pid, signal.SIGKILL)
    came_s, silent_s = time.monotonic(), 0.0
    while piece := await buying.stdout.read(4_096):
        silent_s, came_s = max(silent_s, time.monotonic() - came_s), time.monotonic()
        text += piece.decode()
    if await buying.wait():
        raise Broken(f"the generation whose provider was killed failed:\n{(await said).decode()[-2000:]}")
    done = json.loads(report.read_text())
    if not done.get("begun_anew"):
        raise Broken(f"{names[victim['provider']]} died, and the job did not need it any more")
    went_on = next(a["provider"] for a in done["tasks"] if a["task"] == victim["task"])
    return {
        "task": victim["task"],
        "killed": names[victim["provider"]],
        "went_on": names[went_on],
        "failover_ms": round(silent_s * 1_000, 1),
        "ids": done["ids"],
        "request": done["request"],
        "ticket": done["ticket"],
        "after_chars": 60,
    }
