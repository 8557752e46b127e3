"""What a daemon looks at before it asks any relay or announces anything."""

from contextlib import AsyncExitStack

import pytest

from nodewire.cli.model.profile import _claims, _of_role
from nodewire.config import OracleConfig, ProviderConfig
from nodewire.errors import BadConfig, Busy
from nodewire.startup.oracle import start as start_oracle
from nodewire.startup.provider import start as start_provider
from nodewire.store.state_lock import held

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


async def test_a_device_that_torch_does_not_have_ends_a_provider_before_it_says_anything(tmp_path):
    config = a_provider(tmp_path)
    config = config.model_copy(update={"worker": config.worker.model_copy(update={"device": "cuda:63"})})
    async with AsyncExitStack() as stack:
        with pytest.raises(BadConfig, match=r'worker\.device: torch cannot use "cuda:63"'):
            await start_provider(stack, config)
    assert not (tmp_path / "key").exists()


async def test_nothing_is_measured_beside_a_running_provider(tmp_path):
    with held(tmp_path / "state"), pytest.raises(Busy, match=r"already running: .*; stop it first"):
        await _of_role(a_provider(tmp_path), [], [], lambda _: None)


def test_what_an_ad_will_claim_is_said_with_its_source():
    class Made:
        def speeds(self):
            return {"d" * 64: {"named": 247, "measured": 1_300, "new": 9}}

    named = {("d" * 64, "named"): 5, ("d" * 64, "measured"): None}
    assert _claims(Made(), named, {"d" * 64: "tiny"}) == [
        "tiny named: the ad will claim 5 us a position, since [[serve]] names it (us_per_position)",
        "tiny measured: the ad will claim 1,300 us a position",
        "tiny new: the ad will claim 9 us a position, once it is served",
    ]
