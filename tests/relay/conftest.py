import pytest

from relay import Config, serve
from tests.relay.conversation import NOW, talk


@pytest.fixture
async def relay(tmp_path):
    async with serve(
        Config(db=tmp_path / "events.sqlite", port=0, blobs=tmp_path / "blobs"), clock=lambda: NOW
    ) as running:
        yield running


@pytest.fixture
async def client(relay):
    async with talk(relay.url) as client:
        yield client


@pytest.fixture
async def other(relay):
    async with talk(relay.url) as client:
        yield client
