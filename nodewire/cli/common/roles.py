"""What commands look at before they turn to the market: a role's file, an address, an id; and who is silent there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nodewire.config import AnyRole, CustomerConfig, OracleConfig, ProviderConfig, WalletConfig, load_role
from nodewire.errors import BadConfig, BadInput, TimedOut

if TYPE_CHECKING:
    from nodewire.market import Market
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool

OR_NAMED = "; a name or an address needs --config, a role's TOML file, which says where the market is"
_ID = re.compile(r"[0-9a-f]{64}")


def load_customer(path: Path) -> CustomerConfig:
    """A customer's configuration. Raises BadConfig; another role's file is told as such."""
    role = load_role(path)
    if not isinstance(role, CustomerConfig):
        raise BadConfig(str(path), f"this is {_whose(role)}; a customer's is needed here")
    return role


def load_provider(path: Path) -> ProviderConfig:
    """A provider's configuration. Raises BadConfig; another role's file is told as such."""
    role = load_role(path)
    if not isinstance(role, ProviderConfig):
        raise BadConfig(str(path), f"this is {_whose(role)}: a provider's says what it serves in [[serve]]")
    return role


def load_oracle(path: Path) -> OracleConfig:
    """An oracle's configuration. Raises BadConfig; another role's file is told as such."""
    role = load_role(path)
    if not isinstance(role, OracleConfig):
        raise BadConfig(str(path), f"this is {_whose(role)}: an oracle's has its seat; `committee create` writes one")
    return role


def _whose(role: AnyRole) -> str:
    if isinstance(role, ProviderConfig):
        return "a provider's file (it has [[serve]])"
    return "an oracle's file (it has a seat)" if isinstance(role, OracleConfig) else "a customer's file"


def wallet_of(role: AnyRole) -> WalletConfig:
    """The account that is the role's. Raises BadConfig: an oracle that has none."""
    if role.wallet is None:
        raise BadConfig(
            "bonds",
            "this oracle has no account: `nodewire wallet open URL --out FILE` opens one, then [bonds] names"
            " url and token_file",
        )
    return role.wallet


async def enter_market(stack: AsyncExitStack, role: AnyRole) -> tuple[Keys, Pool, Market]:
    """A role's keys, its relays, and the market of its committee, opened on the stack. Raises as `open_market`."""
    from nodewire.market import Market, open_market
    from nodewire.nostr.pool import Pool
    from nodewire.oracle.setup import load_committee, load_seat
    from nodewire.store.blobs import Blobs

    if not isinstance(role, OracleConfig):
        return await open_market(stack, role)
    committee = load_committee(role.committee)
    keys = load_seat(role.seat, committee).keys
    role.state.mkdir(parents=True, exist_ok=True)
    pool = await stack.enter_async_context(Pool(role.relays, keys=keys))
    blobs = await stack.enter_async_context(Blobs(role.blossom, role.blobs, keys=keys))
    return keys, pool, Market(pool, blobs, committee)


def check_model(text: str, where: str = "--model", *, or_file: bool = False) -> None:
    """Raises BadInput for what is neither a model's address nor a name; `or_file`: nor is there a file of this name."""
    from nodewire.customer.models.names import address_in
    from nodewire.protocol.market.model_name import name_in

    try:
        if address_in(text, where) is None:
            name_in(text, where)
    except BadInput as error:
        no_file = "; nor is there such a file" if or_file else ""
        raise BadInput(
            where, f"{error.reason}{no_file}; `nodewire models --config FILE` lists what is on the market"
        ) from error


def event_id(text: str, what: str = "EVENT", where: str = "`generate` and `embed` print a request's") -> str:
    """An event's id as it was typed; `where` says who prints one. Raises BadInput."""
    if not _ID.fullmatch(found := text.strip().lower()):
        raise BadInput(what, f"{text[:80]!r} is no event id, which has 64 hex digits; {where}")
    return found


@contextmanager
def name_relays(relays: Sequence[str]) -> Iterator[None]:
    """Whoever waits for relays in vain is told for which."""
    try:
        yield
    except TimedOut as error:
        if error.field != "relays":
            raise
        named = ", ".join(relays)
        raise TimedOut(f"relay {named}" if len(relays) == 1 else f"relays {named}", error.reason) from error
