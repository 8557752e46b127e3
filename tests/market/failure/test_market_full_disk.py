"""A customer whose disk is full: on a real file system that is full, in a namespace of its own.

The disk is full from the beginning, then fills up amid a job, then has room again.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(600)

PROMPT = "the cat sat on the mat"

IN_A_NAMESPACE = """
import json, pathlib, subprocess, sys

state, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(state)], check=True)
junk = state / "junk"


def fill():
    with junk.open("wb", 0) as file:
        try:
            while True:
                file.write(bytes(4_096))
        except OSError:
            return


def started(tokens):
    with_tokens = [*command, "--max-tokens", str(tokens)]
    return subprocess.Popen(with_tokens, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process):
    out, err = process.communicate()
    return {"code": process.returncode, "out": out.decode(), "err": err.decode()}


fill()
found = [ended(started(8))]
junk.unlink()
amid = started(300)
first = amid.stdout.read(1)
fill()
found.append(ended(amid))
junk.unlink()
found.append(ended(started(8)))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def unshare() -> list[str]:
    command = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1)")
    tried = subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no file system can be mounted in a namespace here: {tried.stderr.decode().strip()}")
    return command


async def test_a_customer_whose_disk_is_full_is_told_so_and_buys_when_there_is_room(market, unshare):
    config = await market.customer_config("crammed")
    (config.parent / "state").mkdir(exist_ok=True)
    generate = [sys.executable, "-m", "nodewire.cli", "generate", PROMPT, "--config", str(config)]
    command = [*generate, "--model", market.decoder["address"]]
    script = [*unshare, sys.executable, "-c", IN_A_NAMESPACE, str(config.parent / "state"), *command]
    done = await asyncio.to_thread(subprocess.run, script, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    full, filled, after = json.loads(done.stdout)
    for one in (full, filled):
        assert one["code"] == 1, one
        assert "Traceback" not in one["err"]
        assert "node-failed" in one["err"] and ("space" in one["err"] or "full" in one["err"]), one["err"]
    assert full["out"] == "" and filled["out"]
    assert after["code"] == 0, after["err"]
    for name in market.public:
        theirs = market.ledger(name)
        assert theirs.balance_msat(market.keys("crammed").public) == 0
        theirs.close()
