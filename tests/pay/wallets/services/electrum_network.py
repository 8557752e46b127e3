"""Three real nodes for tests, A-B-C, where NODEWIRE_LIGHTNING names their network's state file (`make lightning`)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from nodewire.pay.wallets.electrum import ElectrumWallet
from nodewire.pay.wallets.nwc import Connection, NwcWallet

STATE = "NODEWIRE_LIGHTNING"


@dataclass(frozen=True)
class Node:
    url: str
    token_file: str
    nwc_file: str
    node: str

    def wallet(self) -> ElectrumWallet:
        return ElectrumWallet.from_file(self.url, Path(self.token_file))


def is_there() -> bool:
    return bool(os.environ.get(STATE))


def node_settings() -> dict[str, Node]:
    return {name: Node(**said) for name, said in json.loads(Path(os.environ[STATE]).read_text())["nodes"].items()}


class NwcAtElectrum(NwcWallet):
    """Electrum's own wallet service, over a relay. It makes no invoice with a hash: those come over its JSON-RPC.

    So the cases that need a payee run, and what they see of it is what the service tells. `own_invoice` is its own.
    """

    own_invoice = NwcWallet.invoice

    def __init__(self, node: Node) -> None:
        super().__init__(Connection.parse(Path(node.nwc_file).read_text()))
        self.node, self._rpc = node, node.wallet()

    async def invoice(self, amount_msat, *, description, expiry_s):
        return await self._rpc.invoice(amount_msat, description=description, expiry_s=expiry_s)

    async def close(self) -> None:
        await super().close()
        await self._rpc.close()
