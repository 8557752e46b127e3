"""What `nodewire doctor` says of the stores on a role's disk."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from nodewire.cli.doctor import disk as doctor_disk
from nodewire.config import OracleConfig, ProviderConfig
from nodewire.store.blobs import Blobs

ADDRESSED = {"relays": ("ws://r",), "blossom": ("http://b",)}


@pytest.fixture
def free(monkeypatch):
    def set_to(nbytes):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=nbytes))

    set_to(10**12)
    return set_to


@pytest.fixture
def provider(tmp_path):
    return ProviderConfig.model_validate(
        ADDRESSED
        | {"key": tmp_path / "k", "state": tmp_path / "state", "committee": f"38841:{'0' * 64}:main", "spool": 1_000}
        | {"wallet": {"url": "http://w", "token_file": tmp_path / "t"}, "train": {"msat_per_pflop": 1}}
    )


def oracle(tmp_path, disk):
    paths = {"seat": tmp_path, "committee": tmp_path / "c.json", "state": tmp_path / "state"}
    return OracleConfig.model_validate(ADDRESSED | paths | {"disk": disk})


async def test_a_spool_is_well_until_nine_tenths_of_its_limit_are_taken(provider, free):
    assert (await doctor_disk.check(provider)).ok, "before there is a state folder, too"
    frames = provider.state / "spool" / "job" / "frames"
    frames.parent.mkdir(parents=True)
    frames.write_bytes(bytes(899))
    found = await doctor_disk.check(provider)
    assert (found.ok, found.facts["spool_bytes"]) == (True, 899)
    frames.write_bytes(bytes(900))
    found = await doctor_disk.check(provider)
    assert not found.ok
    assert "jobs that may need more of `spool` than is left are refused" in found.said


async def test_a_limit_that_the_disk_has_no_room_for_is_told(provider, free):
    free(10**9)
    found = await doctor_disk.check(provider.model_copy(update={"spool": 10**9 + 1}))
    assert found.ok, "it need not come to that"
    assert "`spool` lets 1 GB come, more than is free" in found.said


async def test_a_disk_that_is_nearly_full_is_told(provider, free):
    free(10**9 - 1)
    assert "nearly full" in (await doctor_disk.check(provider)).said


async def test_an_oracles_blobs_are_well_up_to_their_limit(tmp_path, free):
    async with Blobs([], tmp_path / "state" / "blobs") as blobs:
        await blobs.put(bytes(500))
    assert (await doctor_disk.check(oracle(tmp_path, 500))).ok
    found = await doctor_disk.check(oracle(tmp_path, 499))
    assert not found.ok
    assert "raise it" in found.said
