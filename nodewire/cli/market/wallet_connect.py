"""`nodewire wallet connect`: a role's file gets a wallet, after the wallet has been tried."""

from __future__ import annotations

import asyncio
import json as json_
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from nodewire.cli.common import role_file
from nodewire.cli.market.role_wallet import document, opened, show
from nodewire.cli.output import Json, console, counted, notes, print_json
from nodewire.config import CustomerConfig, ProviderConfig, WalletConfig, load_role
from nodewire.errors import BadConfig, BadInput, NotAllowed

if TYPE_CHECKING:
    from nodewire.pay.lightning.probe import Finding
    from nodewire.pay.lightning.wallet import Ability, WalletInfo

TABLE = "wallet"
_NWC = re.compile(r"nostr\+?walletconnect:", re.IGNORECASE)
_URL = re.compile(r"https?://", re.IGNORECASE)
_NEEDS: dict[str, tuple[Ability, ...]] = {"provider": ("invoice", "settled"), "customer": ("pay",)}
"""Without these a role's wallet is of no use to it."""
_SECRETS = {
    "lnbits": "The wallet's admin key (LNbits, Node URL, API keys)",
    "sim": "The account's token",
    "lnd": "The macaroon in hex (to add tls.cert, write both to standard input, or into --token-file)",
    "cln": "The rune (to add ca.pem, write both to standard input, or into --token-file)",
    "phoenixd": "http-password of phoenix.conf",
}
_CERTIFIED = ("lnd", "cln")
"""Kinds of wallets that most often come with a certificate of their own."""
_MOST_CHARS = 65_536
"""The longest secret with its certificates."""


@dataclass(frozen=True, slots=True)
class Account:
    """A wallet as its owner named it. `secret` None: it was not in what he wrote, and is asked for."""

    kind: str
    url: str
    secret: str | None = field(repr=False)


def connect(
    context: typer.Context,
    string: Annotated[
        str,
        typer.Argument(
            help="A connection string (nostr+walletconnect://...), or the URL of the wallet's service. Other users of"
            " this machine see a command's arguments. So `-` asks for it unseen, or reads a line of standard input."
        ),
    ],
    config: Annotated[Path, typer.Option("--config", "-c", help="The role's TOML file, which gets the wallet.")],
    kind: Annotated[
        str, typer.Option(help="The kind of wallet, if the string does not say it (a URL is an LNbits service's).")
    ] = "",
    network: Annotated[str, typer.Option(help="The only network that it may be of, such as bc (default: any).")] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="The file with its secret; a new one unless it is there (default: wallet.KIND beside the role's file)."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Replace the file's wallet without asking.")] = False,
    json: Json = False,
) -> None:
    """Connect a role to a wallet: try it, then write it into the role's file, and its secret beside (mode 0600).

    Nothing is paid. Nothing is written if the wallet cannot do what the role needs.
    """
    if context.args:  # the parser's own error would show what may be a secret
        raise BadInput("arguments", "more than one is given: a secret is asked for, or comes on standard input")
    text, data = role_file.read(config)
    role = _role_of(config, data)
    before = data.get(TABLE)
    if before is not None and json and not yes:
        raise NotAllowed(f"{config}: [wallet]", "stands there already; --yes replaces it")
    account = recognized(_line("Connection string or URL") if string == "-" else string, kind)
    with _kept(config, account, token_file, whole=yes or json) as place:
        info, found = asyncio.run(_tried(account, place, network))
        if not json:
            show(info, found)
        _check_needs(role, found)
        if not yes and not json and not _agreed(config, before, info):
            raise NotAllowed("wallet", "not agreed to: nothing was written")
        said = {"kind": account.kind, "url": account.url, "token_file": place.name, "network": info.network}
        if place.parent.resolve() != config.parent.resolve():
            said["token_file"] = str(place.absolute())
        lines = [f"{name} = {json_.dumps(value)}" for name, value in said.items()]
        by_hand = f"[{TABLE}] {'; '.join(lines)}"
        role_file.write(
            config, role_file.with_table(text, TABLE, lines), {**data, TABLE: said}, by_hand, check=load_role
        )
    if json:
        print_json({**document(info, found), **said, "token_file": str(place), "replaced": before is not None})
        return
    console.print(f"[bold green]connected[/] {escape(str(config))}: its [bold]\\[wallet][/] is {escape(info.id)}")
    console.print(f"its secret is in {escape(str(place))}; who has it has the money", soft_wrap=True)
    if isinstance(before, dict) and before.get("token_file"):
        console.print(f"[dim]the secret of the one before stays in {escape(str(before['token_file']))}[/]")


def recognized(text: str, kind: str = "") -> Account:
    """The account in a connection string or at a service's URL; `kind` as the option says it.

    Raises:
        BadInput: it is neither. The error shows nothing of it.
        BadConfig: there is no such kind of wallet.

    """
    from nodewire.pay import registry

    text = text.strip()
    if _NWC.match(text):
        from nodewire.pay.wallets.nwc import Connection

        if kind not in ("", "nwc"):
            raise BadInput("--kind", f"a connection string of Nostr Wallet Connect is no {kind[:32]}")
        return Account("nwc", Connection.parse(text).relays[0], text)
    if not _URL.match(text) and not kind:
        words = "neither a connection string (nostr+walletconnect://...) nor a URL (https://...)"
        raise BadInput("STRING", f"{words}: copy it whole from the wallet, or name its --kind")
    kind = kind or "lnbits"
    registry.wallet_class(kind, "--kind")
    return Account(kind, _plain_url(text) if _URL.match(text) else text, None)


def _plain_url(text: str) -> str:
    """A service's URL without what LNbits shows of a wallet in it, which is a secret. Raises BadInput."""
    from nodewire.net import address_policy

    url = address_policy.parse(text.partition("#")[0])
    return str(url.with_query(None).with_path(url.path.removesuffix("/wallet").rstrip("/"))).rstrip("/")


async def _tried(account: Account, place: Path, network: str) -> tuple[WalletInfo, list[Finding]]:
    from nodewire.pay import registry
    from nodewire.pay.lightning import probe

    meant = network or await _network(account, place)
    registry.network_of(account.kind, meant)
    said = {"kind": account.kind, "url": account.url, "token_file": place, "network": meant}
    async with opened(WalletConfig.model_validate(said)) as (wallet, _):
        return await probe.probe(wallet)


async def _network(account: Account, place: Path) -> str:
    """The network that the wallet names."""
    from nodewire.pay import registry

    wallet = registry.wallet_class(account.kind).from_file(account.url, place)
    try:
        return (await wallet.info()).network
    finally:
        await wallet.close()


def _role_of(config: Path, data: dict[str, Any]) -> str:
    """The role of a file, which need not have a wallet yet. Raises BadConfig: an oracle's."""
    if "seat" in data:
        raise BadConfig(str(config), "this is an oracle's file, whose account stands in [bonds]: url and token_file")
    sold = (ProviderConfig.model_fields.keys() - CustomerConfig.model_fields.keys()) & data.keys()
    return "provider" if sold else "customer"


def _check_needs(role: str, found: Sequence[Finding]) -> None:
    """Raises NotAllowed: the wallet lacks what the role cannot do without."""
    for one in found:
        if one.ability in _NEEDS[role] and one.means:
            said = f" ({one.said})" if one.said else ""
            remedy = "allow it in the wallet, or connect another one"
            raise NotAllowed(one.ability, f"it {one.state}{said}: {one.means}. Nothing was written; {remedy}")


def _agreed(config: Path, before: Any, info: WalletInfo) -> bool:
    """Whether the owner agrees to lose the file's wallet, if it has one."""
    if info.network == "bc":
        notes.print("this wallet has [bold]real money[/]: give its connection a budget in the wallet itself")
    if before is None:
        return True
    left = _under_way(config)
    if left:
        notes.print(f"the wallet before has yet to say what became of {counted(left, 'payment')}", soft_wrap=True)
    was = before.get("kind", "sim") if isinstance(before, dict) else "another one"
    return typer.confirm(f"Replace the wallet of kind {was} in {config}?", err=True)


def _under_way(config: Path) -> int:
    """How many payments the file's wallet was told to make and has not settled, by the ledger."""
    from nodewire.pay.accounts.ledger import Ledger

    role = load_role(config)
    if not isinstance(role, CustomerConfig | ProviderConfig) or not role.ledger.exists():
        return 0
    ledger = Ledger(role.ledger)
    try:
        return len(ledger.under_way()) + len(ledger.own.under_way())
    finally:
        ledger.close()


def _place(config: Path, kind: str) -> Path:
    """A file for the secret that does not exist yet: no other secret is ever overwritten."""
    names = (f"wallet.{kind}" if number == 1 else f"wallet-{number}.{kind}" for number in range(1, 1_000))
    free = (config.parent / name for name in names)
    return next(path for path in free if not path.exists())


@contextmanager
def _kept(config: Path, account: Account, token_file: Path | None, *, whole: bool) -> Iterator[Path]:
    """The file with the secret: a new one for its owner's eyes, gone again if the block fails, or one that is there.

    `whole`: nothing is asked later, so all of standard input is the secret.

    Raises:
        BadConfig: a file is there, and another secret was given.
        BadInput: no secret was given.

    """
    place = token_file or _place(config, account.kind)
    if place.exists():
        if account.secret is not None:
            raise BadConfig(str(place), "exists; a secret is never overwritten: name another --token-file")
        yield place
        return
    secret = account.secret or _secret(account.kind, whole=whole)
    if not secret:
        raise BadInput("secret", "none was given: write it to standard input, or name its file by --token-file")
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret + "\n")
    try:
        yield place
    except BaseException:
        place.unlink(missing_ok=True)
        raise


def _secret(kind: str, *, whole: bool) -> str:
    """A secret: typed unseen, or of standard input a line, or all of it, where further lines are certificates."""
    if not sys.stdin.isatty() and (whole or kind in _CERTIFIED):
        return sys.stdin.read(_MOST_CHARS).strip()
    return _line(_SECRETS.get(kind, "The wallet's secret"))


def _line(what: str) -> str:
    """A secret: typed unseen, or a line of standard input."""
    if sys.stdin.isatty():
        return str(typer.prompt(what, hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()
