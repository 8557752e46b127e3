"""The second act, job A: a provider is killed in the middle of a generation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from market import NODEWIRE, Broken, Market
from records import newest_plan


async def bereave(
    market: Market, customer: Path, public: str, prompt: str, tokens: int, model: str, relay: str, names: dict
) -> dict:
    """Buy a generation, and kill one of its providers when some of it has come. What then happened."""
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
    # A piece in the middle of the model; in the draw of a small market there may be no second holder of every piece.
    mortal = [a for a in plan["tasks"] if a["standby"]]
    if not mortal:
        raise Broken("no piece of the model has a standby in the plan, so no provider can die")
    victim = mortal[len(mortal) // 2]
    os.killpg(market.processes[names[victim["provider"]]].pid, signal.SIGKILL)
    killed_ms = time.time() * 1000
    text += (await buying.stdout.read()).decode()
    if await buying.wait():
        raise Broken(f"the generation whose provider was killed failed:\n{(await said).decode()[-2000:]}")
    done = json.loads(report.read_text())
    took = [handed["resumed_ms"] - killed_ms for handed in done["takeovers"] if handed["resumed_ms"]]
    return {
        "task": victim["task"],
        "killed": names[victim["provider"]],
        "standby": names[victim["standby"]],
        "failover_ms": round(max(took), 1) if took else None,
        "ids": done["ids"],
        "request": done["request"],
        "ticket": done["ticket"],
        "after_chars": 60,
    }
