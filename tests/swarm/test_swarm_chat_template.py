"""A chat template that a swarm's driver shows is kept whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodewire.customer.static_swarm import NodesRecord

TEMPLATE = b"{{ messages }}" * 100


class Members:
    async def shown(self, what: str, max_bytes: int) -> bytes:
        return TEMPLATE


async def test_a_template_that_a_crash_left_half_is_asked_for_again(tmp_path, monkeypatch):
    sha256, write = hashlib.sha256(TEMPLATE).hexdigest(), Path.write_bytes
    record = NodesRecord(SimpleNamespace(swarm=None), Members(), tmp_path / "blobs")
    record._cut = SimpleNamespace(
        chat=SimpleNamespace(sha256=sha256),
        driver=SimpleNamespace(program=SimpleNamespace(sha256="00" * 32), weights=()),
    )

    def broken_off(path: Path, data: bytes) -> int:
        write(path, data[: len(data) // 2])
        raise OSError("no space left")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", broken_off)
        with pytest.raises(OSError, match="no space"):
            await record.fetch_blob(sha256, 4_096)
    assert (await record.fetch_blob(sha256, 4_096)).read_bytes() == TEMPLATE
