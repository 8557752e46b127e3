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

from machines import machine_bytes
from market import NODEWIRE, DemoFailure, Market
from records import next_plan
from screen import out

KILL_AFTER = 40
"""Characters of the answer that have come when a provider is killed."""
Came = Callable[[str], Awaitable[None]]


async def ask(
    question: str, arguments: list[str], tokens: int, report: Path, came: Came, pids: list[int] | None = None
) -> dict:
    """What `nodewire generate --chat` reports of its answer, and `printed`: all that it printed, as it came.

    `came` is told every further text. `pids` gets the id of the command's process. Raises DemoFailure.
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
        raise DemoFailure(f"the question was not answered:\n{said[-2000:]}")
    return {**json.loads(report.read_text()), "printed": printed}


def show(text: str, style: str = "") -> None:
    """A part of a line, at once."""
    out.print(text, end="", style=style, markup=False, soft_wrap=True)
    sys.stdout.flush()


class AnswerWithDeath:
    """An answer that is shown as it comes, and one of whose providers is killed.

    `arguments` are of `nodewire generate`. `public`: the customer's key. `names`: of providers, by public key.
    `serving`: by task, who serves it.
    """

    def __init__(
        self,
        market: Market,
        arguments: list[str],
        public: str,
        relay: str,
        names: Mapping[str, str],
        serving: Mapping[str, Set[str]],
    ) -> None:
        self._market, self._arguments, self._public, self._relay = market, arguments, public, relay
        self._names, self._serving = names, serving
        self._text = ""
        self._victim: dict = {}
        self._came_s = self._silent_s = 0.0
        self._machine_bytes = 0

    async def ask(self, question: str, tokens: int) -> dict:
        """What `ask` says, and what became of it: `task`, `killed`, `went_on`, empty where the death came too late."""
        async with next_plan(self._relay, self._public) as planned:
            self._planned = planned
            report = self._market.folder / "answer.json"
            done = await ask(question, self._arguments, tokens, report, self._came)
        out.print()
        if not self._victim:
            raise DemoFailure(f"the answer ended after {len(self._text)} characters, before anybody could die")
        task = self._victim["task"]
        went_on = next(a["provider"] for a in done["tasks"] if a["task"] == task) if done["begun_anew"] else ""
        return {
            **done,
            "task": task,
            "killed": self._names[self._victim["provider"]],
            "went_on": self._names.get(went_on, ""),
            "first_providers": {a["task"]: self._names[a["provider"]] for a in (await planned)["tasks"]},
            "failover_ms": round(self._silent_s * 1_000, 1),
            "machine_bytes": self._machine_bytes,
        }

    async def _came(self, piece: str) -> None:
        now_s = time.monotonic()
        is_first = not self._text
        self._text += piece
        plan = await self._planned
        dies = not self._victim and len(self._text) >= KILL_AFTER
        if dies:
            self._kill(plan)
        elif self._victim:
            self._silent_s = max(self._silent_s, now_s - self._came_s)
        if is_first:
            told = ", ".join(f"{self._names[a['provider']]} ({a['task']})" for a in plan["tasks"])
            out.print(
                f"  [dim]computed by {told}; the driver reads question and answer, the relay neither[/]\n",
                soft_wrap=True,
            )
        show(piece, "bold")
        if dies:
            show(f" [the demo kills {self._names[self._victim['provider']]} here] ", "red")
        self._came_s = time.monotonic()

    def _kill(self, plan: Mapping) -> None:
        """End a provider in the middle of the plan whose piece another has as well; memory is looked at before."""
        daemons = {a["provider"]: self._market.processes[self._names[a["provider"]]] for a in plan["tasks"]}
        self._machine_bytes = max(machine_bytes(one.pid) for one in daemons.values())
        mortal = [a for a in plan["tasks"] if len(self._serving[a["task"]]) > 1]
        if not mortal:
            raise DemoFailure(
                "every provider of the plan holds a piece of the model that nobody else has, so none can die"
            )
        self._victim = mortal[len(mortal) // 2]
        os.killpg(daemons[self._victim["provider"]].pid, signal.SIGKILL)
