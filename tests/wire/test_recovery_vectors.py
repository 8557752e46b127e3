"""tests/vectors/recovery1.json, rule by rule: when a node ends a job whose link is lost, and takes another for gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodewire.errors import LinkLost, from_dict
from nodewire.wire.job.channel_spec import JobChannelSpec
from nodewire.wire.job.routes import routes_of
from nodewire.wire.job_member import Membership
from tests.protocol.documents import PROVIDERS, manifest, plan
from tests.wire.wire_net import job_id, until

CASES = json.loads((Path(__file__).parent.parent / "vectors" / "recovery1.json").read_text())["link"]
PEER = PROVIDERS[1].public
CHANNEL = JobChannelSpec(job_id("job"), routes_of(manifest(), plan()), grace_s=5.0)


class Asked:
    """A node that is told what its neighbour answers, in place of links."""

    def __init__(self, answers):
        self.answers, self.lost, self.ended = list(answers), None, []

    def open_job(self, channel):
        self.lost = channel.on_lost
        return SimpleNamespace(cancel=self.ended.append)

    def keep(self, public, addresses, failed):
        return SimpleNamespace(close=lambda: None)

    async def holds(self, public, addresses, request, patience_s):
        assert (public, patience_s) == (PEER, 3.0)
        return self.answers.pop(0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["rule"])
async def test_what_a_lost_link_does(case):
    node = Asked([loss["presence"] for loss in case["losses"]])
    member = Membership(CHANNEL, manifest(), node, {PEER: ["127.0.0.1:1"]})
    following = asyncio.create_task(member.follow_losses())
    for left in range(len(case["losses"]) - 1, -1, -1):
        assert not node.ended
        error = case["losses"][-1 - left]["error"]
        lost = (
            LinkLost(PEER, "closed")
            if error == "link-lost"
            else from_dict({"code": error, "field": "a", "reason": "b"})
        )
        node.lost(PEER, lost)
        await until(member._losses.empty)
        for _ in range(8):  # turns of the loop, in which nothing waits for anything
            await asyncio.sleep(0)
    following.cancel()
    assert [(one.code, one.field) for one in node.ended] == ([(case["ended"], PEER)] if case["ended"] else [])
    assert (PEER in member.lost_here) == case["gone"]


@pytest.mark.parametrize("held", [True, None])
async def test_a_member_without_an_address_is_waited_for_and_not_dialled(held):
    """It ends the job only if it is lost and does not come back."""
    node = Asked([held])
    node.keep = lambda *_: pytest.fail("dialled")
    member = Membership(CHANNEL, manifest(), node, {PEER: ()})
    await member.link(PEER)
    following = asyncio.create_task(member.follow_losses())
    node.lost(PEER, LinkLost(PEER, "closed"))
    await until(member._losses.empty)
    for _ in range(8):
        await asyncio.sleep(0)
    following.cancel()
    assert bool(node.ended) == (held is None)
