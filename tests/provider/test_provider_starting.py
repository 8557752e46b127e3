"""What a daemon looks at before it asks any relay or announces anything."""

from contextlib import AsyncExitStack

import pytest

from nodewire.config import OracleConfig, ProviderConfig
from nodewire.errors import Busy
from nodewire.oracle.starting import start as start_oracle
from nodewire.provider.starting import start as start_provider
from nodewire.store.held import held

NOWHERE = {"relays": ("ws://127.0.0.1:9",), "blossom": ("http://127.0.0.1:9",)}


def a_provider(folder):
    return ProviderConfig(
        key=folder / "key",
        state=folder / "state",
        committee=f"38841:{'0' * 64}:main",
        wallet={"url": "http://127.0.0.1:9", "token_file": folder / "token"},
        train={"msat_per_pflop": 1},
        **NOWHERE,
    )


def an_oracle(folder):
    return OracleConfig(seat=folder / "seat", committee=folder / "committee", state=folder / "state", **NOWHERE)


@pytest.mark.parametrize(("start", "config"), [(start_provider, a_provider), (start_oracle, an_oracle)])
async def test_a_second_daemon_on_a_state_folder_ends_before_it_says_anything(tmp_path, start, config):
    with held(tmp_path / "state"):
        async with AsyncExitStack() as stack:
            with pytest.raises(Busy, match=r"already running: state folder .*/state is in use by process"):
                await start(stack, config(tmp_path))
    assert not (tmp_path / "key").exists()
