"""Without Landlock or seccomp a worker starts only by the operator's word, and never with the keys in reach.

The lacking layer is simulated as the kernel would answer: a filter on a process of the test's has the calls fail with
ENOSYS, in the worker as well, which inherits it.
"""

from __future__ import annotations

import errno
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = """
import asyncio, ctypes, json, struct, sys
from pathlib import Path

lacking, sandbox, folder, key = sys.argv[1].split(","), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
CALLS = {"landlock": (444, 445, 446), "seccomp": (317,), "namespaces": (272, 165), "": ()}
numbers = [number for name in lacking for number in CALLS[name]]
code = [(0x20, 0, 0, 0)]  # the call's number
for number in numbers:
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 38)]  # ENOSYS
code.append((0x06, 0, 0, 0x7FFF0000))
packed = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
filter_ = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(packed)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter_, 0, 0) == 0

from nodewire.errors import NodewireError
from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Frame
from nodewire.worker import WorkerProcess


async def main():
    limits = Limits(128 * 2**20, sandbox=sandbox, secrets=(key,))
    try:
        worker = await WorkerProcess.start("worker_entry_for_tests", limits, readable=[folder], arena_bytes=2**20)
    except NodewireError as error:
        print(json.dumps({"refused": error.code, "said": str(error)}))
        return
    (folder / "program").write_bytes(b"8")
    await worker.load("echo", "any", folder / "program", [])
    session = await worker.open("echo", "s", {})
    found = {"sandbox": worker.hello.sandbox}
    for what, path in (
        ("read_content", key),
        ("read_content", f"/proc/{worker.hello.pid}/../1/root{key}"),
        ("read_the_daemons_memory", None),
        ("read_the_daemons_environment", None),
        ("read_a_file", str(folder / "program")),
    ):
        [answer] = await session.receive(Frame("e", 1, (), {"do": "probe", "what": what, "path": path}))
        found[f"{what} {path or ''}".strip()] = answer.meta["refused"]
    print(json.dumps(found))
    await worker.stop()


asyncio.run(main())
"""
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the filter is of x86_64's calls"
)


def start(tmp_path: Path, lacking: str, sandbox: str) -> dict:
    """What a daemon says whose kernel lacks these: the refusal, or by probe an error's number, None if it was done."""
    key, folder = tmp_path / "key.nsec", tmp_path / "blobs"
    key.write_text("nsec1secret")
    key.chmod(0o600)
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, lacking, sandbox, str(folder), str(key)],
        capture_output=True, text=True, timeout=110, env={"PYTHONPATH": f"{HERE}:{HERE.parent.parent}", "PATH": ""},
    )  # fmt: skip
    assert done.stdout, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("lacking", "named"), [("landlock", "no Landlock"), ("seccomp", "no seccomp")])
def test_a_worker_that_cannot_be_confined_fully_does_not_start(tmp_path, lacking, named):
    found = start(tmp_path, lacking, "full")
    assert found["refused"] == "bad-config"
    assert named in found["said"] and 'sandbox = "weak"' in found["said"]


def test_a_weak_worker_without_landlock_reads_neither_keys_nor_the_daemons_memory(tmp_path):
    found = start(tmp_path, "landlock", "weak")
    if "user namespaces" in found.get("said", ""):
        pytest.skip("this machine allows no user namespaces")
    assert "landlock" not in found["sandbox"] and "seccomp" in found["sandbox"]
    key = str(tmp_path / "key.nsec")
    assert found[f"read_content {key}"] == errno.ENODATA  # there, and empty
    assert all(refused for name, refused in found.items() if name.startswith("read_content /proc"))
    assert found["read_the_daemons_memory"] and found["read_the_daemons_environment"]
    assert found[f"read_a_file {tmp_path / 'blobs' / 'program'}"] is None


def test_a_weak_worker_without_seccomp_reads_no_key(tmp_path):
    found = start(tmp_path, "seccomp", "weak")
    assert found["sandbox"] == "rlimits+landlock"
    assert found[f"read_content {tmp_path / 'key.nsec'}"] in (errno.EACCES, errno.EPERM)
    assert found["read_the_daemons_memory"] and found["read_the_daemons_environment"]


def test_a_weak_worker_from_which_nothing_keeps_the_keys_does_not_start(tmp_path):
    found = start(tmp_path, "landlock,namespaces", "weak")
    assert found["refused"] == "bad-config"
    assert "key.nsec" in found["said"] and "user namespaces" in found["said"]


def test_where_nothing_is_lacking_weak_changes_nothing(tmp_path):
    assert start(tmp_path, "", "weak")["sandbox"] == "rlimits+landlock+seccomp"
