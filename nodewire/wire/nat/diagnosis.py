"""Which rung of the ladder holds from here, and what an operator can do for a better one. For `nodewire doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nodewire.errors import NodewireError
from nodewire.net import address_policy
from nodewire.wire.nat.dialback import DialbackResult, ask_some
from nodewire.wire.nat.public_address import Finds, Outlook, find, look
from nodewire.wire.nat.upnp import PortMapping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.keys import Keys
    from nodewire.protocol.encoding.address import SpliceAddress


@dataclass(frozen=True, slots=True)
class ReachDiagnosis:
    """`rung`: the best one by which others reach a node here; `words`: that, and what to change.

    `dialled`: what came of having a splice dial the port, where others would; why none did; None: there is no splice.
    """

    rung: Literal["address", "upnp", "punch", "splice", "none"]
    words: str
    outlook: Outlook
    dialled: DialbackResult | NodewireError | None


async def examine(
    relays: Finds,
    keys: Keys,
    port: int,
    *,
    splices: Sequence[SpliceAddress] = (),
    upnp: bool = True,
    allow_private: bool = False,
    is_running: bool = False,
) -> ReachDiagnosis:
    """Look from this machine, for a node of `keys` that listens at `port`: by `splices`, or those that the relays know.

    A port that the router opens for this is closed again, unless the daemon `is_running`, whose it is. It takes a
    few seconds and raises nothing: what does not work is in the words.
    """
    lacking = ""
    if not splices:
        try:
            splices = await find(relays)
        except NodewireError as error:
            lacking = f"the relays name none ({error})"
    seen = await look(splices, keys, allow_private=allow_private)

    async def dialled() -> DialbackResult | NodewireError | None:
        return await ask_some(seen.splices, port, keys, allow_private=allow_private) if port else None

    if seen.nat == "none":
        return ReachDiagnosis("address", _own(seen.own), seen, await dialled())
    closed = "UPnP is switched off"
    if upnp:
        try:
            mapping = await PortMapping.open(port)
        except NodewireError as error:
            closed = error.reason
        else:
            try:
                tried = await dialled()
            finally:
                if not is_running:
                    await mapping.close()
            return ReachDiagnosis("upnp", f"the router opens {mapping.address} by UPnP", seen, tried)
    better = f"Better: open TCP port {port} in the router and set [wire] announce, or switch on its UPnP ({closed})"
    if not seen.splices:
        return ReachDiagnosis("none", f"no way here is known: {lacking or seen.refused}. {better}", seen, None)
    tried = await dialled()
    if isinstance(tried, DialbackResult) and tried.outcome == "open":
        words = f'the router leads port {port} here: set [wire] announce = ["{tried.at}"], for nobody is told so far'
        return ReachDiagnosis("address", words, seen, tried)
    shown = f"{', '.join(sorted(set(seen.seen)))} to {len(seen.splices)} splice{'s' * (len(seen.splices) > 1)}"
    if seen.nat == "symmetric":
        words = f"the router shows everybody another port ({shown}), so only splices lead here"
        return ReachDiagnosis("splice", f"{words}. {better}", seen, tried)
    sure = "" if seen.nat == "cone" else ", if it shows others the same; a second splice would tell"
    words = f"holes can be punched through the router, which shows {shown}{sure}"
    return ReachDiagnosis("punch", f"{words}. {better}", seen, tried)


def _own(address: str) -> str:
    if address_policy.is_dialled(address, allow_private=False):
        return f"this machine is public, at {address}"
    return f"this machine's own address is {address}, which is not a public one: only its network (or VPN) reaches it"
