"""Opens the bond holder from its two files: its own Nostr key and the document of the committee that it holds for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadConfig, BadInput
from nodewire.nostr.keys import Keys
from nodewire.protocol.committee.committee import Committee
from simnet.treasurer import STATEMENT_S, Rules, Treasurer

if TYPE_CHECKING:
    from pathlib import Path

    from simnet.service import Simnet


def open_treasurer(
    simnet: Simnet, key: Path, committee: Path, *, statement_s: int = STATEMENT_S, unbonding_s: int | None = None
) -> Treasurer:
    """The holder with its account on `simnet`. `key` is made if missing; `committee` is a committee.json.

    Raises:
        BadConfig: a file cannot be used, the committee does not list this holder, or a delay is too short.

    """
    keys = Keys.from_file(key)
    try:
        document = Committee.parse(committee.read_bytes())
        rules = Rules.for_committee(document, statement_s, unbonding_s)
    except OSError as error:
        raise BadConfig(str(committee), f"cannot be read: {error.strerror}") from error
    except BadInput as error:
        raise BadConfig(f"{committee}: {error.field}", error.reason) from error
    if keys.public not in document.bond_holders:
        reason = f"does not list {keys.public}, the holder of {key}, in bond_holders: its statements would not count"
        raise BadConfig(str(committee), reason)
    return Treasurer(simnet, keys, document, rules)
