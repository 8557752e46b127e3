"""The wire's tests run on uvloop, as the daemon does."""

import asyncio
import tempfile
from pathlib import Path

import pytest
import uvloop

from tests.wire.wire_net import Net


def pytest_asyncio_loop_factories():
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
async def ended():
    """No test waits for ever: uvloop keeps from it what pytest-timeout raises in a signal's handler."""
    loop = asyncio.get_running_loop()
    ending = loop.call_later(100, lambda: [task.cancel("it took too long") for task in asyncio.all_tasks(loop)])
    yield
    ending.cancel()


@pytest.fixture
async def net(request):
    """Nodes over TLS, or as `wire_net.TLS_AND_SHM` says."""
    with tempfile.TemporaryDirectory() as folder:  # its path is short enough for a socket's
        net = Net(Path(folder) if getattr(request, "param", "tls") == "shm" else None)
        yield net
        await net.close()
