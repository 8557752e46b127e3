"""The wire's tests run on uvloop, as the daemon does."""

import pytest
import uvloop
from wire_net import Net


def pytest_asyncio_loop_factories():
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def net():
    net = Net()
    yield net
    await net.close()
