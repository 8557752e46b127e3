"""A node of `bench.network.coordinates`, on a machine of its own: told whom to dial, it says where it is when it is
asked."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop

from nodewire.nostr.keys import Keys
from nodewire.wire import LinkPolicy, Node, Patience


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


async def _main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    address, pace_s = sys.argv[1], float(sys.argv[2])
    node = Node(Keys.generate(), policy=LinkPolicy(patience=Patience(idle_heartbeat_s=pace_s)), survey_s=pace_s)
    host, _, port = address.rpartition(":")
    await node.listen(host, int(port))
    _say(node.public)
    kept = [node.keep(peer, [where]) for peer, where in json.loads(await lines.readline())]
    await lines.readline()
    rtts = {peer: link.rtt_us for peer, link in node.peers.items() if link.rtt_us is not None}
    _say({"at": node.survey.place.claim.at, "rtt_us": rtts})
    for one in kept:
        one.close()


if __name__ == "__main__":
    uvloop.run(_main())
