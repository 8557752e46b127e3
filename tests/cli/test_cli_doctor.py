"""What `nodewire doctor` says of a provider's tasks before its daemon would fail on them."""

from __future__ import annotations

import pytest

from nodewire.cli import doctor
from nodewire.config import ProviderConfig, Serve
from nodewire.errors import BadConfig, OverMemory
from tests.protocol import documents

MODEL = "38840:" + "0" * 64 + ":tiny"


class Market:
    async def manifest(self, address, digest=None):
        return documents.manifest()


@pytest.fixture
def serve(monkeypatch, tmp_path):
    async def enter_market(stack, role):
        return None, None, Market()

    monkeypatch.setattr(doctor, "enter_market", enter_market)

    async def check(tasks, memory):
        (tmp_path / "provider.toml").write_text(
            'key = "k"\nstate = "s"\nrelays = ["ws://r"]\nblossom = ["http://b"]\n'
            f'committee = "38841:{"0" * 64}:main"\n'
            '[wallet]\nurl = "http://w"\ntoken_file = "t"\n'
            f'[worker]\nmemory = "{memory}"\n'
            f'[[serve]]\nmanifest = "{MODEL}"\ntasks = ["driver"]\nprice_msat = 1\n'
        )
        role = ProviderConfig.load(tmp_path / "provider.toml")
        return await doctor._serve(role, Serve(manifest=MODEL, tasks=tasks, price_msat=1))

    return check


async def test_a_task_that_the_manifest_lacks_is_named_with_those_that_it_has(serve):
    with pytest.raises(BadConfig, match=r"tasks: tiny has no stage\.9; it has driver, stage\.0, stage\.1"):
        await serve(("stage.0", "stage.9"), "2MB")


async def test_memory_below_what_a_task_needs_is_told_with_what_it_takes(serve):
    with pytest.raises(OverMemory, match=r'worker\.memory: .*: set \[worker\] memory = "1MB" or more'):
        await serve(("stage.0", "stage.1"), "4kB")


async def test_tasks_that_fit_are_told_with_what_they_may_need(serve):
    assert await serve(("stage.0",), "2MB") == "tiny: stage.0, may need 0.0 of 2.0 MB"
