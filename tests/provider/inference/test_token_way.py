"""The list of what a token passes at a stage (docs/reference/token-path.md) is of the code that runs."""

import re
import sys
from pathlib import Path

from nodewire.kind import Limits
from nodewire.provider.tasks.loader import loaded_name
from nodewire.worker import WorkerProcess
from tests.provider.inference.test_provider_job import folder  # noqa: F401
from tests.provider.inference.test_speculative_job import truth  # noqa: F401
from tests.provider.ring import Ring

ROOT = Path(__file__).parents[3]
DRIVER_ALONE = {("kinds/k8843.py", "_ChunkCloser")}
"""The ring's driver is in the process that is looked at, too."""
NOW_AND_THEN = {("wire/link/heartbeat.py", "Pulse"), ("core/bounded_dict.py", "BoundedDict")}
"""A link's heartbeat, which no frame waits for; a bounded table, where bytes are counted."""
VALUES = {"Frame", "Array", "DataHeader", "Manifest", "Turn"}
STEPS = range(20, 60)


def listed() -> set[tuple[str, str]]:
    text = (ROOT / "docs" / "reference" / "token-path.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in text.splitlines() if line.startswith("| `")]
    return {(where.strip("`"), name) for where, names in rows for name in re.findall(r"`(\w+)`", names)}


class Way:
    """Which classes of ours have a method that runs in this process: a function for `sys.setprofile`."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, frame, event, _):
        path, (name, *rest) = frame.f_code.co_filename, frame.f_code.co_qualname.split(".")
        is_ours = path.startswith((f"{ROOT}/nodewire/", f"{ROOT}/kinds/")) and name not in VALUES
        if event == "call" and is_ours and rest and rest[0] != "<locals>":
            self.seen.add((path.removeprefix(f"{ROOT}/").removeprefix("nodewire/"), name))


async def test_a_frame_passes_what_is_listed_and_nothing_else(folder, tmp_path, truth):  # noqa: F811
    ring = Ring(folder, tmp_path, truth, policy="none", chunk=64)
    blobs = ring.registration.blobs
    worker = await WorkerProcess.start(
        "kinds.k8843_worker", Limits(10**9), readable=sorted({path.parent for path in blobs.values()})
    )
    way, ring.worker = Way(), worker
    try:
        for task in ring.manifest.tasks:
            program, weights = blobs[task.program.sha256], [blobs[one.sha256] for one in task.weights]
            await worker.load(loaded_name(ring.manifest.digest(), task.name), task.engine, program, weights)
        async with ring:
            await ring.ask()
            for count in range(STEPS.stop):
                await ring.member.mailbox.get()
                if count == STEPS.start:
                    sys.setprofile(way)
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
        await worker.stop()
    in_process = {one for one in listed() if one[0] in ("worker/process/serve.py", "llm/")}
    assert sorted(way.seen - DRIVER_ALONE - NOW_AND_THEN) == sorted(listed() - in_process)
