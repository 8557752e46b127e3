"""The wire's tests run on uvloop, as the daemon does."""

import tempfile
from pathlib import Path

import pytest
import uvloop
from wire_net import Net


def pytest_asyncio_loop_factories():
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def net(request):
    """Nodes over TLS, or as `wire_net.TLS_AND_SHM` says."""
    with tempfile.TemporaryDirectory() as folder:  # its path is short enough for a socket's
        net = Net(Path(folder) if getattr(request, "param", "tls") == "shm" else None)
        yield net
        await net.close()
