"""What commands look at before they turn to the market: a role's file, an address, an id; and who is silent there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nodewire.config import CustomerConfig, ProviderConfig, load_role
from nodewire.errors import BadConfig, BadInput, TimedOut

_ID = re.compile(r"[0-9a-f]{64}")
_COORDINATE = re.compile(r"\d+:")


def load_customer(path: Path) -> CustomerConfig:
    """A customer's configuration. Raises BadConfig; a provider's file is told as such."""
    role = load_role(path)
    if isinstance(role, ProviderConfig):
        raise BadConfig(str(path), "this is a provider's file (it has [[serve]]); a customer's is needed here")
    return role


def load_provider(path: Path) -> ProviderConfig:
    """A provider's configuration. Raises BadConfig; a customer's file is told as such."""
    role = load_role(path)
    if isinstance(role, CustomerConfig):
        raise BadConfig(str(path), "this is a customer's file: a provider's says what it serves in [[serve]]")
    return role


def check_model(address: str) -> None:
    """Raises BadInput for what is no address but, say, a model's bare name."""
    if not _COORDINATE.match(address):
        raise BadInput(
            "--model",
            f"{address[:80]!r} is no address (38840:<author>:<name>); `nodewire models --config FILE` lists them",
        )


def event_id(text: str) -> str:
    """An event's id as it was typed. Raises BadInput."""
    if not _ID.fullmatch(found := text.strip().lower()):
        reason = f"{text[:80]!r} is no event id, which has 64 hex digits; `generate` and `embed` print a request's"
        raise BadInput("EVENT", reason)
    return found


@contextmanager
def naming(relays: Sequence[str]) -> Iterator[None]:
    """Whoever waits for relays in vain is told for which."""
    try:
        yield
    except TimedOut as error:
        if error.field != "relays":
            raise
        named = ", ".join(relays)
        raise TimedOut(f"relay {named}" if len(relays) == 1 else f"relays {named}", error.reason) from error
