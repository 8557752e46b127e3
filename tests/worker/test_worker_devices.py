"""GPUs and slices as the driver's tool lists them; what a process takes, as the kernel counts it."""

import asyncio
import os
import sys

import pytest

from nodewire.worker.devices import Slice, devices, gpus, in_use_bytes, sampled

LISTED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 3g.20gb     Device  0: (UUID: MIG-9ba7be96-a7e3-5a8b-a7a1-0a6a9d8cd5f2)
  MIG 1g.5gb      Device  1: (UUID: MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0)
GPU 1: NVIDIA H100 PCIe (UUID: GPU-00000000-0000-0000-0000-000000000001)
"""
SIZES = """\
GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f, 40960
GPU-00000000-0000-0000-0000-000000000001, [N/A]
"""


def test_slices_stand_under_their_gpu():
    first, second = gpus(LISTED, SIZES, mps=False)
    assert (first.kind, first.index, first.name) == ("cuda", 0, "NVIDIA A100-SXM4-40GB")
    assert first.memory_bytes == 40 * 2**30
    assert first.slices == (
        Slice("3g.20gb", "MIG-9ba7be96-a7e3-5a8b-a7a1-0a6a9d8cd5f2"),
        Slice("1g.5gb", "MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0"),
    )
    assert (second.index, second.slices, second.memory_bytes) == (1, (), 0)


def test_a_shared_gpu_says_so_and_rubbish_is_no_gpu():
    assert all(gpu.shared for gpu in gpus(LISTED, SIZES, mps=True))
    assert gpus("Failed to initialize NVML: Driver/library version mismatch\n", "", mps=False) == []
    assert gpus("  MIG 1g.5gb      Device  1: (UUID: MIG-1)\n", "", mps=False) == []


async def test_a_tool_that_lists_gpus_is_asked(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    sizes = SIZES.replace("\n", "\\n")
    listed = LISTED.replace("\n", "\\n")
    tool.write_text(f'#!/bin/sh\ncase "$1" in -L) printf "{listed}";; *) printf "{sizes}";; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    found = await devices()
    assert [one.kind for one in found] == ["cpu", "cuda", "cuda"]
    assert not found[1].shared
    (tmp_path / "control").touch()
    assert (await devices())[1].shared


async def test_a_tool_that_fails_leaves_the_cpu(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho GPU 0: no\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (cpu,) = await devices()
    assert cpu.kind == "cpu"
    assert cpu.memory_bytes > 2**28


async def test_of_a_gpus_memory_only_what_came_on_top_is_counted(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    once = 'case "$*" in *loop*) for used in 510 900 700; do echo "40, $used"; done; exec sleep 60;; *) echo 500;; esac'
    tool.write_text(f'#!/bin/sh\ntest "$1" = --id=1 || exit 9\n{once}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = await in_use_bytes("cuda:1")
    assert before == 500 * 2**20
    async with sampled(os.getpid(), "cuda:1", before) as load, asyncio.timeout(60):
        while len(load.memory_bytes) < 3:
            await asyncio.sleep(0.01)
    assert load.peak_bytes == 400 * 2**20
    assert load.mean_busy == pytest.approx(0.4)
    assert await in_use_bytes("cpu") == await in_use_bytes("cuda:0") == 0


async def test_what_a_process_computes_and_holds_is_seen():
    held = "x = bytearray(80_000_000)\nprint(flush=True)\nwhile True: x[0] = 1"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", held, stdout=asyncio.subprocess.PIPE)
    try:
        await process.stdout.readline()
        async with sampled(process.pid, "cpu") as load, asyncio.timeout(60):
            while len(load.busy) < 3:
                await asyncio.sleep(0.01)
    finally:
        process.kill()
        await process.wait()
    assert load.mean_busy > 0.05
    assert 80_000_000 <= load.peak_bytes < 500_000_000
    async with sampled(process.pid, "cpu") as load:
        await asyncio.sleep(0.25)
    assert (load.mean_busy, load.peak_bytes) == (0.0, 0)
