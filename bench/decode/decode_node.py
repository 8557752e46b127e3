"""A node of a ring of `bench.decode`, told what to do on standard input: `python -m bench.decode.decode_node
ROLE`.

ROLE: provider or customer.

A provider is the daemon's own parts around a worker: a node of the wire, a job's desk, the kind's loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from bench.decode.decode_worker import COMPUTED_US
from bench.network.transition_node import LOOPBACK, lines, plan_of, routes_of, say, served
from kinds.k8843 import KIND
from nodewire.kind import Limits
from nodewire.nostr.keys import Keys
from nodewire.protocol.job.request import Request
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.provider.tasks.job_worker import JobWorker
from nodewire.provider.tasks.loader import loaded_name
from nodewire.wire import JobChannelSpec, Node, Spool
from nodewire.wire.job.generation_tape import GenerationTape
from nodewire.worker.persistent_worker import maker

MEMORY_BYTES = 500_000_000
SPOOL_BYTES = 2**30
_HASH = "ab" * 32


async def _met(stack: AsyncExitStack, heard: asyncio.StreamReader) -> tuple[Keys, Node, dict[str, Any]]:
    """Listening, and with links to all others."""
    keys = Keys.generate()
    node = Node(keys)
    stack.push_async_callback(node.close)
    say([keys.public, await node.listen(LOOPBACK, 0)])
    known = json.loads(await heard.readline())
    for public, address in known["addresses"].items():
        if public > keys.public:  # one dials, and both have the link
            await node.link(public, [address])
    say("linked")
    return keys, node, known


async def provide() -> None:
    heard = await lines()
    async with AsyncExitStack() as stack:
        what = json.loads(await heard.readline())
        folder = Path(what["folder"])
        manifest = Manifest.parse((folder / "manifest.json").read_bytes())
        worker = maker(stack, Limits(MEMORY_BYTES), folder)("bench.decode.decode_worker")
        for name in what["tasks"]:
            task = manifest.task(name)
            files = [folder / blob.sha256 for blob in task.weights]
            await worker.load(loaded_name(manifest.digest(), name), task.engine, folder / task.program.sha256, files)
        keys, node, known = await _met(stack, heard)
        spool = Spool(Path(stack.enter_context(TemporaryDirectory(prefix="nw-decode-"))), SPOOL_BYTES)
        while line := await heard.readline():
            job = json.loads(line)
            plan = plan_of(manifest, known["holders"], known["customer"])
            tape = GenerationTape(spool, job["job"], manifest, plan.terms.lookahead)
            mailbox = node.open_job(
                JobChannelSpec(job["job"], routes_of(manifest, known["holders"], known["customer"]), tape=tape)
            )
            request = Request(job["job"], known["customer"], 1, 8843, plan, "", _HASH, (), 0, (), _HASH)
            params = KIND.check(manifest, job["params"])
            await served(keys, request, manifest, mailbox, JobWorker(worker, manifest, {}), params, tape)


async def buy() -> None:
    """One generation after the other; says when each token came, and how long its turn was computed."""
    heard = await lines()
    async with AsyncExitStack() as stack:
        what = json.loads(await heard.readline())
        manifest = Manifest.parse((Path(what["folder"]) / "manifest.json").read_bytes())
        _, node, known = await _met(stack, heard)
        while line := await heard.readline():
            job = json.loads(line)
            mailbox = node.open_job(
                JobChannelSpec(job["job"], routes_of(manifest, known["holders"], known["customer"]))
            )
            say("open")
            await heard.readline()
            text = job["prompt"].encode()
            prompt = Array("uint8", (len(text),), text)
            await mailbox.put(Frame("prompt", 0, (prompt,), {"chunk": 0}))
            came: list[list[float]] = []
            is_over = False
            while not is_over:
                frame = await mailbox.get()
                came.append([time.perf_counter() * 1e6, frame.meta[COMPUTED_US]])  # type: ignore[list-item]
                is_over = bool(frame.meta["end"])
            say(came)
            await heard.readline()
            mailbox.close()
            say("done")


if __name__ == "__main__":
    uvloop.run({"provider": provide, "customer": buy}[sys.argv[1]]())
