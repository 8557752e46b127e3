"""Types of fields, each with the words that an error has for it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from nodewire.errors import BadInput
from nodewire.protocol.encoding.address import SPLICE_WORDS
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.encoding.schema import Msat
from nodewire.protocol.encoding.validation_errors import shaped

if TYPE_CHECKING:
    from pathlib import Path


def parse_msat(text: str) -> int:
    """Millisats from "100000sat", "5 msat" or "0.5sat".

    Raises:
        BadInput: it is none of these.

    """
    number, unit = text.strip().lower().replace(" ", ""), 1000
    if number.endswith("msat"):
        number, unit = number[:-4], 1
    elif number.endswith("sat"):
        number = number[:-3]
    elif re.fullmatch(r"\d+(\.\d+)?", number):
        raise BadInput("amount", f"{number} of what? Add a unit: {number}sat, or {number}msat for thousandths")
    try:
        value = Decimal(number) * unit
    except ArithmeticError as error:
        raise BadInput("amount", f"{text!r} is not an amount such as 500sat or 1200msat") from error
    if not value.is_finite() or not 0 <= value <= 2_100_000_000_000_000_000 or value != int(value):
        raise BadInput("amount", f"{text!r} is not a whole number of millisats in range")
    return int(value)


def msat_of(said: object) -> object:
    """An amount as a file has it: whole msat, or a text with a unit. Raises ValueError."""
    if isinstance(said, float):
        raise ValueError(f'{said}: write a text with a unit, such as "{said}sat", or whole msat')
    try:
        return parse_msat(said) if isinstance(said, str) else said
    except BadInput as error:
        raise ValueError(error.reason) from error


def parse_sat(value: object) -> object:
    """Whole satoshis of an amount in text."""
    if not isinstance(value, str):
        return value
    msat = parse_msat(value)
    if msat % 1_000:
        raise ValueError("not whole satoshis")
    return msat // 1_000


Amount = Annotated[Msat, BeforeValidator(msat_of)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
Address = Annotated[str, shaped(r"^[^\s]{1,255}:[0-9]{1,5}$", "host:port")]
SpliceAt = Annotated[str, shaped(r"^splice:[0-9a-f]{64}@[^\s]{1,255}:[0-9]{1,5}$", SPLICE_WORDS)]
_NAMED = r"[0-9a-f]{64}:[a-z0-9][a-z0-9._-]{0,63}$"
_SECRET = re.compile(r"://|:/|[?&]secret=|^[0-9a-fA-F]{24,}$|^nsec1", re.IGNORECASE)


def _names_no_secret(path: Path | None) -> Path | None:
    """Refuses a secret, or a URL that has one, where the name of its file belongs. The error does not show it."""
    if path is not None and (_SECRET.search(str(path)) or _SECRET.search(path.name)):
        raise ValueError("it is a secret or a URL: put that into a file of mode 0600, and name the file here")
    return path


NAMES_NO_SECRET = AfterValidator(_names_no_secret)
"""The check of a field that names the file with a secret."""
ManifestAt = Annotated[str, shaped(rf"^38840:{_NAMED}", "38840:<author's public key in hex>:<name>")]
CommitteeAt = Annotated[str, shaped(rf"^38841:{_NAMED}", "38841:<founder's public key in hex>:<name>")]
WalletKind = Annotated[str, shaped(r"^[a-z][a-z0-9_+-]{0,31}$", 'the name of a kind of wallet, such as "sim"')]
Congestion = Annotated[str, shaped(r"^[a-z0-9_-]{0,15}$", 'the name of a congestion control, such as "bbr"')]
Device = Annotated[str, shaped(r"^(cpu|cuda(:\d+)?|mps)$", 'a device: "cpu", "cuda", "cuda:1" or "mps"')]
Person = Annotated[str, shaped(r"^[a-z0-9]{5,5000}$|^30000:[a-z0-9]{63,64}:.{0,255}$", "an npub, naddr or list")]

DEFAULT_WALLET = "sim"
"""The kind of wallet where a file names none: an entry in the group `nodewire.wallets`."""
